"""Operations as tools of a model: their names, their schemas, and what a model reads of a call."""
