"""What the adapter offers, as it goes over the wire: identity, instructions and the list of tools.

Imports only the standard library and asks nobody anything: the list is the same whether a daemon
runs or not, so a small process may answer `tools/list` from here while the MCP SDK is loading.
Schemas are flat JSON Schema (2020-12) without combinators at the root, which every host accepts.
"""

from __future__ import annotations

from typing import Any, Final

SERVER_NAME: Final = "mcpd"
SERVER_TITLE: Final = "mcpd: local cameras and vision models"
INSTRUCTIONS: Final = (
    "mcpd runs vision models on live camera and video streams of this computer. "
    "Call list_streams and list_models first to learn the names, then run_inference to see what "
    "is in a stream now, or in an image or video file. Answers are numbers and labels; pixels are "
    "never returned. When something fails or looks wrong, get_status says why and what to do."
)

MAX_RESULT_NBYTES: Final = 50_000
"""Most bytes of JSON in one result: longer lists are cut and say so; hosts spill more to a file."""
MAX_DETECTIONS: Final = 1000
DEFAULT_DETECTIONS: Final = 50
MAX_LABELS: Final = 100
"""Most label names listed per model."""
MAX_VALUES: Final = 64
"""Most values shown of one output tensor."""
TIME_LIMIT_S: Final = 25.0
"""Longest that one call works before it gives up; hosts give up at about 60 s."""

NAME_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"

_READS: Final[dict[str, Any]] = {
    "readOnlyHint": True,
    "destructiveHint": False,
    "idempotentHint": True,
    "openWorldHint": False,
}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _count(description: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": "number", "description": description}


def _rows(description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "array",
        "description": description,
        "items": _object(properties, required),
    }


_OMITTED: Final = _count("How many entries were left out to keep this answer short.")
_NOTE: Final = _text("What was left out of this answer or is unusual about it.")

GET_STATUS: Final[dict[str, Any]] = {
    "name": "get_status",
    "title": "Status of mcpd",
    "description": (
        "Tells whether mcpd, the local service that runs vision models on video streams, is "
        "running and healthy: how much it serves, what it uses, and a list of problems, each with "
        "what to do about it. Use it first when another tool fails, when results look old, or when "
        "asked whether everything is working. Takes no arguments and changes nothing."
    ),
    "inputSchema": _object({}, []),
    "outputSchema": _object(
        {
            "summary": _text("The state in one sentence."),
            "problems": _rows(
                "What is wrong now, worst first; empty when all is well.",
                {
                    "about": _text("The stream, model or part it concerns."),
                    "problem": _text("What is wrong."),
                    "next_step": _text("What to do about it."),
                },
                ["about", "problem", "next_step"],
            ),
            "version": _text("Version of the running mcpd."),
            "pid": _count("Process id of the daemon."),
            "socket": _text("Path of the socket the daemon answers on."),
            "uptime_s": _number("Seconds since the daemon started."),
            "cpu_s": _number("Seconds of CPU time the daemon process has used since its start."),
            "rss_mib": _number("Resident memory of the daemon process in MiB."),
            "shared_mib": _number("Shared memory that streams occupy in MiB."),
            "sessions": _count("Connected programs."),
            "streams": _count("Streams there are, cameras and videos as well as results."),
            "models": _count("Models in the repository."),
            "workers": _count("Model processes running."),
            "omitted": _OMITTED,
            "note": _NOTE,
        },
        ["summary", "problems", "pid", "socket", "sessions", "streams", "models", "workers"],
    ),
    "annotations": {"title": "Status of mcpd", **_READS},
}

LIST_STREAMS: Final[dict[str, Any]] = {
    "name": "list_streams",
    "title": "List video streams",
    "description": (
        "Lists the live streams (cameras, videos and other sources of frames) that models can run "
        "on now, with picture size and how fresh the newest frame is. Use the name of one as the "
        "`stream` argument of run_inference. An empty list means that nothing is being streamed: "
        "a person can start one with `mcpd push FILE_OR_CAMERA_URL --stream NAME`. Takes no "
        "arguments and changes nothing."
    ),
    "inputSchema": _object({}, []),
    "outputSchema": _object(
        {
            "count": _count("Number of streams there are, listed here or not."),
            "streams": _rows(
                "The streams, sorted by name.",
                {
                    "name": _text("Name to use as the `stream` argument of run_inference."),
                    "kind": _text("What it carries: frames (pictures) or tensors."),
                    "format": _text("Pixel format of the frames, such as i420 or rgb24."),
                    "width": _count("Width of the frames in pixels."),
                    "height": _count("Height of the frames in pixels."),
                    "frames": _count("Frames published since the stream began."),
                    "fps": _number("Frames per second, of late."),
                    "newest_age_s": _number("Seconds since the newest frame was published."),
                    "readers": _count("Programs and models reading it now."),
                    "memory_mib": _number("Shared memory it occupies in MiB."),
                },
                ["name", "kind"],
            ),
            "omitted": _OMITTED,
            "note": _NOTE,
        },
        ["count", "streams"],
    ),
    "annotations": {"title": "List video streams", **_READS},
}

LIST_MODELS: Final[dict[str, Any]] = {
    "name": "list_models",
    "title": "List vision models",
    "description": (
        "Lists the models that mcpd has, whether each is ready, and the labels that each can tell "
        "apart (person, cat, cup, ...). Use the name of one as the `model` argument of "
        "run_inference. An empty list means that none is installed: a person can fetch a detector "
        "with `mcpd models fetch ssdlite-coco`. Takes no arguments and changes nothing."
    ),
    "inputSchema": _object({}, []),
    "outputSchema": _object(
        {
            "count": _count("Number of models there are, listed here or not."),
            "models": _rows(
                "The models, sorted by name.",
                {
                    "name": _text("Name to use as the `model` argument of run_inference."),
                    "version": _count("Version that is served; the highest one in the repository."),
                    "state": _text(
                        "ready; starting; stopped (starts when it is asked for); failed (is tried "
                        "again); parked (failed too often); broken (its folder cannot be used)."
                    ),
                    "engine": _text("What runs it, such as onnx."),
                    "provider": _text("Where it runs, such as cpu."),
                    "answers": _text("detections (boxes with labels), or tensors (raw numbers)."),
                    "labels": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": f"Labels it can tell apart, at most {MAX_LABELS} of them.",
                    },
                    "label_count": _count("Number of labels it has, listed here or not."),
                    "error": _text("Why it is failed or broken."),
                },
                ["name", "state"],
            ),
            "omitted": _OMITTED,
            "note": _NOTE,
        },
        ["count", "models"],
    ),
    "annotations": {"title": "List vision models", **_READS},
}

RUN_INFERENCE: Final[dict[str, Any]] = {
    "name": "run_inference",
    "title": "Look at a stream or file with a model",
    "description": (
        "Runs a vision model once, on the newest frame of a live stream or on an image or video "
        "file of this computer (of a video, its first frame), and returns what the model found: "
        "how many of each label, and each detection with label, score and box. Give `model` and "
        "exactly one of `stream` and `path`. Boxes are [x0, y0, x1, y1] in pixels of the frame, "
        "from its top left corner. For what is in view now use a stream; call again for a newer "
        f"frame. Takes milliseconds on a stream, seconds on a file, at most {TIME_LIMIT_S:.0f} s. "
        "Stores nothing and returns no pixels."
    ),
    "inputSchema": _object(
        {
            "model": {
                "type": "string",
                "pattern": NAME_PATTERN,
                "description": "Name of the model, from list_models.",
            },
            "stream": {
                "type": "string",
                "pattern": NAME_PATTERN,
                "description": "Name of the stream, from list_streams. Leave out if path is given.",
            },
            "path": {
                "type": "string",
                "minLength": 1,
                "maxLength": 4096,
                "description": (
                    "Absolute path of an image or video file, inside a folder that the user "
                    "allows (by default Videos and Pictures). Leave out if stream is given."
                ),
            },
            "min_score": {
                "type": "number",
                "minimum": 0,
                "maximum": 1,
                "default": 0,
                "description": (
                    "Leaves out detections that score below this, from 0 to 1. Models have a "
                    "threshold of their own, so 0 gives what the model holds worth reporting."
                ),
            },
            "max_results": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_DETECTIONS,
                "default": DEFAULT_DETECTIONS,
                "description": "Most detections to return; the best are kept, counts include all.",
            },
        },
        ["model"],
    ),
    "outputSchema": _object(
        {
            "counts": {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "description": "Detections by label, most frequent first, returned here or not.",
            },
            "count": _count("Number of detections that reached min_score, returned here or not."),
            "detections": _rows(
                "The detections, best score first.",
                {
                    "label": _text("What it is."),
                    "score": {
                        "type": "number",
                        "minimum": 0,
                        "maximum": 1,
                        "description": "How sure the model is, from 0 to 1.",
                    },
                    "box": {
                        "type": "array",
                        "items": {"type": "number"},
                        "minItems": 4,
                        "maxItems": 4,
                        "description": "x0, y0, x1, y1 in pixels of the frame.",
                    },
                },
                ["label", "score", "box"],
            ),
            "outputs": _rows(
                "For a model that does not detect objects: its output tensors.",
                {
                    "name": _text("Name of the tensor."),
                    "dtype": _text("Type of its values, such as float32."),
                    "shape": {"type": "array", "items": {"type": "integer"}},
                    "values": {
                        "type": "array",
                        "items": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                        "description": (
                            f"Its first values in C order, at most {MAX_VALUES}; null for one that "
                            "is infinite or no number."
                        ),
                    },
                },
                ["name", "dtype", "shape", "values"],
            ),
            "model": _text("The model that ran."),
            "version": _count("Version of the model that ran."),
            "stream": _text("The stream the frame came from."),
            "path": _text("The file the frame came from, with symbolic links resolved."),
            "frame": _count("Sequence number of the frame in its stream."),
            "frame_age_s": _number("Seconds from the frame's publishing to this answer."),
            "width": _count("Width of the frame in pixels."),
            "height": _count("Height of the frame in pixels."),
            "time_s": _number("Position of the frame in its video or recording, in seconds."),
            "model_ms": _number("Milliseconds the worker spent on the frame."),
            "omitted": _OMITTED,
            "note": _NOTE,
        },
        ["counts", "count", "detections", "model"],
    ),
    "annotations": {
        "title": "Look at a stream or file with a model",
        **_READS,
        "idempotentHint": False,
    },
}

TOOLS: Final[tuple[dict[str, Any], ...]] = (GET_STATUS, LIST_STREAMS, LIST_MODELS, RUN_INFERENCE)
"""Every tool, as one entry of the `tools` of a `tools/list` result."""


def tool(name: str) -> dict[str, Any] | None:
    """The entry of the tool `name`; None if there is none."""
    return next((entry for entry in TOOLS if entry["name"] == name), None)
