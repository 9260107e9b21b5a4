client = AsyncOpenAI(base_url=BASE, api_key=KEY, timeout=30.0, max_retries=5)
sem = asyncio.Semaphore(48)

async def one(doc):
    async with sem:
        r = await client.chat.completions.create(
            model="mistral-small", max_tokens=2500, temperature=0.2,
            messages=prompt(doc), extra_headers={"X-Item": doc.id})
        return doc.id, r.choices[0].message.content

# queue consumer: a failed document goes back to the head of the queue
