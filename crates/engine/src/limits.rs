//! Every bound of the engine. What is not bounded here is bounded by the model's context or by the cache.

use crate::EngineError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that wait for a place among the running ones; further ones are refused. Preempted requests wait beside
    /// them.
    pub waiting_requests: usize,
    /// Requests that hold cache pages at the same time: the most rows in a step.
    pub running_requests: usize,
    /// Tokens that one step computes, over all rows.
    pub step_tokens: usize,
    /// Tokens of one prompt that one step computes. Smaller keeps decode steps between the chunks short.
    pub chunk_tokens: usize,
    /// Tokens that end one request when drawn.
    pub stop_tokens: usize,
    /// Steps that the trace remembers.
    pub trace_steps: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            waiting_requests: 1024,
            running_requests: 64,
            step_tokens: 1024,
            chunk_tokens: 512,
            stop_tokens: 64,
            trace_steps: 4096,
        }
    }
}

impl Limits {
    /// Limits for batches of up to `running_requests`: decode rows and one whole chunk fit into a step beside each
    /// other.
    pub fn for_batch(running_requests: usize, chunk_tokens: usize) -> Self {
        let limits = Limits::default();
        let step_tokens = limits.step_tokens.max(running_requests.saturating_add(chunk_tokens));
        Limits { running_requests, step_tokens, chunk_tokens, ..limits }
    }

    pub(crate) fn validate(&self) -> Result<(), EngineError> {
        let positive = [
            ("waiting_requests", self.waiting_requests),
            ("running_requests", self.running_requests),
            ("chunk_tokens", self.chunk_tokens),
            ("trace_steps", self.trace_steps),
        ];
        if let Some((name, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(EngineError::LimitIsZero { name });
        }
        // Decode rows come first: only a budget beyond them lets a prompt move on in every step.
        if self.step_tokens < self.running_requests {
            return Err(EngineError::StepTooSmall {
                step_tokens: self.step_tokens,
                running_requests: self.running_requests,
            });
        }
        Ok(())
    }
}
