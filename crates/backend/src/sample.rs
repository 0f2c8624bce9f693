//! Drawing a token from logits.

/// How a token is drawn. The draw depends on the seed and the position alone, never on the batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is argmax (lowest id on ties).
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep this many most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Drop tokens less likely than this share of the likeliest; 0 drops none.
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: u64,
    /// How many of the likeliest tokens to report with their log probabilities.
    pub top_logprobs: usize,
}

/// A drawn token with its log probability (before temperature and truncation), and the likeliest alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub token: u32,
    pub logprob: f32,
    pub top: Vec<(u32, f32)>,
}
