"""Callers that are in a span of OpenTelemetry, without its package."""

import contextvars
import types
from dataclasses import dataclass


@dataclass
class SpanContext:
    """What a span of the package `opentelemetry` says of itself."""

    trace_id: int
    span_id: int
    trace_flags: int


class Span:
    """A span as the package has it."""

    def __init__(self, trace_id: int, span_id: int = 7, trace_flags: int = 1) -> None:
        self._context = SpanContext(trace_id, span_id, trace_flags)

    def get_span_context(self) -> SpanContext:
        return self._context


class Package(types.ModuleType):
    """Stands in for `opentelemetry.trace`, whose current span is a variable of the context too."""

    def __init__(self) -> None:
        super().__init__("opentelemetry.trace")
        self.span: contextvars.ContextVar[Span] = contextvars.ContextVar("span", default=Span(0, 0, 0))

    def get_current_span(self) -> Span:
        return self.span.get()
