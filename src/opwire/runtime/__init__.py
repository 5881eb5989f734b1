"""Helpers around asyncio: tasks, deadlines, threads, limits. They know no type of opwire but its errors."""
