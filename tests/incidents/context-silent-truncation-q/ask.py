# lvcheck/ask.py (Auszug)
payload = {
    "model": "mistral-small3.2:24b",
    "stream": True,
    "messages": [{"role": "user", "content": contract_text + "\n\n" + QUESTIONS}],
    "options": {"temperature": 0.1, "num_predict": 1024},
}
r = requests.post("http://llm-2:11434/api/chat", json=payload, stream=True, timeout=600)
