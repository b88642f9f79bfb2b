"""Engines: what runs a model. Each wraps one runtime; a worker loads the one it needs."""

from __future__ import annotations

from pathlib import Path

from mcpd.daemon.engines.engine import Engine
from mcpd.daemon.models.model_toml import ENGINE_FILES
from mcpd.daemon.models.repository import ModelConfig


def open_engine(config: ModelConfig, version_path: Path) -> Engine:
    """The model of `version_path`, loaded into the engine that the configuration names.

    Raises:
        ModelFailed: It cannot be loaded.
    """
    from mcpd.daemon.engines.onnx import OnnxEngine

    engine: Engine = OnnxEngine()
    engine.load(version_path / ENGINE_FILES[config.engine], config)
    return engine
