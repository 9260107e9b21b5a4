"""The script Streamlit runs. It stands in a folder of its own because Streamlit takes a folder `pages` beside its script
for a navigation of its own, and answers the first deep link with that."""

from lensd_dashboards import app

app.main()
