//! Every bound of the server. What one request may ask of the model is bounded by the engine's own limits, and an
//! answer by its `max_tokens` or the context.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Bytes of a request's body. A conversation of a million tokens takes about 5 MB.
    pub body_bytes: usize,
    /// Connections open at the same time; further ones wait to be accepted.
    pub connections: usize,
    /// Bodies above [`ServerLimits::small_body_bytes`] that are read or understood at the same time; further ones
    /// wait. Together with `body_bytes` it bounds the memory of requests on their way in.
    pub large_bodies: usize,
    /// Bodies up to this size are read at once, and understood on the connection's own thread.
    pub small_body_bytes: usize,
    /// Grammars that are compiled at the same time; further ones wait. Each may take a second and 100 MB, if somebody
    /// wants it to.
    pub grammars: usize,
    /// For a request's head, and for its body, to arrive.
    pub arrival: Duration,
    /// For a client to take some of what is written to it; one that takes nothing for so long is cut off.
    pub write_stall: Duration,
    /// Answers to one request: `n` times the number of prompts.
    pub choices: usize,
    /// Stop strings of one request.
    pub stop_strings: usize,
    /// Bytes of all its stop strings together: each character of an answer is compared with all of them.
    pub stop_bytes: usize,
    /// Tokens that end an answer, the model's end token among them. Every answer of a request has its own copy.
    pub stop_tokens: usize,
    /// Prompt tokens of one request, a prompt counted once for each of its answers. Every answer has its own copy.
    pub prompt_tokens: usize,
    /// Likeliest tokens reported for each position.
    pub top_logprobs: usize,
    /// Requests handed to the engine's thread while it computes a step; further ones are refused.
    pub submissions: usize,
    /// Tokens that a reader may be behind. One who falls further behind loses the answer: the engine neither waits
    /// for readers nor keeps what they do not fetch. Without logprobs a token takes 48 bytes.
    pub unread_tokens: usize,
    /// Responses that are kept to be fetched or continued; the one used longest ago goes first.
    pub kept_responses: usize,
    /// Bytes of their JSON.
    pub kept_bytes: usize,
    /// Responses that one may continue, its whole line of ancestors.
    pub chained_responses: usize,
    /// Bytes of events kept of one response in the background, for readers that join later.
    pub background_log_bytes: usize,
    /// For connections to end once the time for running answers is over, or a second signal came.
    pub goodbye: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            body_bytes: 64 << 20,
            connections: 2048,
            large_bodies: 8,
            small_body_bytes: 256 << 10,
            grammars: 2,
            arrival: Duration::from_secs(60),
            write_stall: Duration::from_secs(60),
            choices: 128,
            stop_strings: 16,
            stop_bytes: 4096,
            stop_tokens: 64,
            prompt_tokens: 4 << 20,
            top_logprobs: 20,
            submissions: 1024,
            unread_tokens: 16_384,
            kept_responses: 4096,
            kept_bytes: 256 << 20,
            chained_responses: 1000,
            background_log_bytes: 8 << 20,
            goodbye: Duration::from_secs(3),
        }
    }
}
