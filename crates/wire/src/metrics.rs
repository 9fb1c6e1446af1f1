/// A text form of metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetricsFormat {
    /// The text form of Prometheus, exposition format 0.0.4.
    #[default]
    Prometheus,
    /// OpenMetrics 1.0.0, which has exemplars.
    OpenMetrics,
}

impl MetricsFormat {
    /// Its media type, as HTTP names it.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}
