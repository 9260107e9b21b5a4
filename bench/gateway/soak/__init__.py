"""Parts of soak_gateway.py: engines that die, callers that misbehave, a moody OTLP door, what the gateway holds, and the verdict."""
