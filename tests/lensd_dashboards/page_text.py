"""What a page says, for tests to read."""

from streamlit.testing.v1 import AppTest


def text_of(app: AppTest) -> str:
    """Everything the page says in words, without Markdown's marks."""
    kinds = ("markdown", "caption", "code", "subheader", "error", "warning", "info", "success")
    said = [str(element.value) for kind in kinds for element in app.get(kind)]
    said += [expander.label for expander in app.expander]
    return "\n".join(said).replace("\\", "").replace("**", "")
