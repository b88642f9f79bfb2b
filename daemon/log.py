"""Log lines of the daemon and its workers: `time level name message key=value`, or JSON."""

from __future__ import annotations

import json
import logging
import sys


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (seconds since 1970), level, logger, message, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        fields = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def start_logging(level: str, *, as_json: bool) -> None:
    """Sends this process's log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter()
        if as_json
        else logging.Formatter("%(asctime)s %(levelname)s %(name)s[%(process)d] %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])
