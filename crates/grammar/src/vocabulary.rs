//! A model's tokens as `llguidance` wants them, and the masks that need no grammar.

use crate::error::told;
use crate::{GrammarError, Limits};
use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use overshot_backend::TokenMask;
use overshot_chat::{Special, Tokenizer};
use std::fmt;
use std::sync::Arc;

pub(crate) struct Vocabulary {
    pub factory: ParserFactory,
    pub tokenizer: Tokenizer,
    pub vocab_size: usize,
    pub end: u32,
    pub dsml: u32,
    pub think_close: u32,
    pub all_but_end: TokenMask,
    pub all_but_dsml: TokenMask,
}

impl Vocabulary {
    pub fn new(tokenizer: &Tokenizer, vocab_size: usize, limits: &Limits) -> Result<Self, GrammarError> {
        let wrong = |reason: String| GrammarError::Tokenizer { reason };
        let special = |special: Special| {
            tokenizer.special_id(special).ok_or_else(|| wrong(format!("it has no token {}", special.text())))
        };
        let vocab_size = vocab_size.max(tokenizer.vocabulary_size());
        let end = tokenizer.end_of_sentence();
        let words: Vec<Vec<u8>> = (0..vocab_size as u32).map(|id| word(tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab_size as u32, end), &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
            .map_err(|error| wrong(told(&error)))?;
        factory.quiet();
        *factory.limits_mut() = parser_limits(limits);

        let all_but = |token: u32| {
            let mut mask = TokenMask::all(vocab_size);
            mask.forbid(token);
            mask
        };
        let dsml = special(Special::Dsml)?;
        Ok(Vocabulary {
            factory,
            tokenizer: tokenizer.clone(),
            vocab_size,
            end,
            dsml,
            think_close: special(Special::ThinkClose)?,
            all_but_end: all_but(end),
            all_but_dsml: all_but(dsml),
        })
    }

    /// Whether this token may be the last one before the DSML token of a tag.
    pub fn opens_tag(&self, token: u32) -> bool {
        !self.tokenizer.is_added(token) && self.tokenizer.bytes_of(token).ends_with(b"<")
    }
}

/// Added tokens stand behind a byte that no text holds, so that text never spells one. The ordinary token of that
/// byte alone is left out: no valid text needs it.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.bytes_of(id);
    match bytes.first() {
        Some(_) if tokenizer.is_added(id) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        Some(&TokTrie::SPECIAL_TOKEN_MARKER) | None => Vec::new(),
        Some(_) => bytes.to_vec(),
    }
}

fn parser_limits(limits: &Limits) -> ParserLimits {
    ParserLimits {
        max_items_in_row: limits.open_alternatives,
        initial_lexer_fuel: limits.compile_fuel,
        step_lexer_fuel: limits.mask_fuel,
        step_max_items: limits.mask_items,
        max_lexer_states: limits.lexer_states,
        max_grammar_size: limits.grammar_symbols,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Vocabulary({} tokens)", self.vocab_size)
    }
}
