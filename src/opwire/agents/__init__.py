"""Operations as tools of a model: definitions and results for OpenAI, Anthropic, Gemini, and for agent frameworks."""

from opwire.agents.model_tools import Media, ModelTool, ModelTools, ToolOutcome
from opwire.agents.providers import (
    AnthropicTools,
    GeminiTools,
    OpenAITools,
    ProviderTools,
    anthropic_tools,
    gemini_tools,
    openai_tools,
)

__all__ = [
    "AnthropicTools",
    "GeminiTools",
    "Media",
    "ModelTool",
    "ModelTools",
    "OpenAITools",
    "ProviderTools",
    "ToolOutcome",
    "anthropic_tools",
    "gemini_tools",
    "openai_tools",
]
