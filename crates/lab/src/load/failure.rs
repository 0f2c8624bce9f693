//! How a request can fail, so that failures can be counted by kind and told in a sentence.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("it cannot be reached ({0})")]
    Connect(String),
    #[error("it was silent for {} s: raise --timeout if it needs longer", .0.as_secs_f64())]
    Silent(Duration),
    #[error("it answered with status {status}: {sentence}")]
    Status { status: u16, sentence: String, retry_after: Option<Duration> },
    #[error("it gave up within an answer: {0}")]
    GaveUp(String),
    #[error("it closed the connection within an answer ({0})")]
    Closed(String),
    #[error("it answered with what is no stream of chat or completion chunks: {0}")]
    Nonsense(String),
}

/// Texts of servers are quoted up to here.
const QUOTED_CHARS_MAX: usize = 300;

impl Failure {
    pub fn silent(idle: Duration) -> Self {
        Failure::Silent(idle)
    }

    /// For counting.
    pub fn kind(&self) -> String {
        match self {
            Failure::Connect(_) => "not reachable".into(),
            Failure::Silent(_) => "silent".into(),
            Failure::Status { status, .. } => format!("status {status}"),
            Failure::GaveUp(_) => "gave up".into(),
            Failure::Closed(_) => "closed early".into(),
            Failure::Nonsense(_) => "nonsense".into(),
        }
    }

    /// How long to wait before the next request, so that failures do not make a busy loop: as the server asks, within
    /// reason.
    pub fn pause(&self) -> Duration {
        const UNLESS_TOLD: Duration = Duration::from_millis(250);
        const MOST: Duration = Duration::from_secs(10);
        match self {
            Failure::Status { retry_after: Some(asked), .. } => (*asked).clamp(UNLESS_TOLD, MOST),
            _ => UNLESS_TOLD,
        }
    }
}

/// The beginning of a server's text.
pub fn quoted(text: &str) -> String {
    let visible = |character: char| if character.is_control() { ' ' } else { character };
    let mut quoted: String = text.trim().chars().map(visible).take(QUOTED_CHARS_MAX).collect();
    if quoted.is_empty() {
        quoted.push_str("(no text)");
    } else if text.trim().chars().nth(QUOTED_CHARS_MAX).is_some() {
        quoted.push_str("...");
    }
    quoted
}
