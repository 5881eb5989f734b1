"""The TypeScript package of this repository and a hub in Python judge each other."""
