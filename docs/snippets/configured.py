import asyncio

from opwire.config import load_config, open_config


async def main() -> None:
    config = load_config("opwire.toml")  # or a ConfigError with every mistake in it
    async with open_config(config) as opened:
        print(len(opened.registry), "operations", dict(opened.failures))


asyncio.run(main())
