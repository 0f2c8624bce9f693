//! Demands to grammars: one text in `llguidance`'s language for each, compiled within bounds.

use crate::calls::{self, BlockRules, Preferences};
use crate::error::{Trouble, told};
use crate::held::{Begins, HeldAnswer};
use crate::vocabulary::Vocabulary;
use crate::{CallRules, Calls, Demand, Form, GrammarError, Limits, Place, lark, schema};
use llguidance::Matcher;
use llguidance::api::TopLevelGrammar;
use overshot_chat::{Start, Tokenizer};
use overshot_engine::Constraint;
use serde_json::json;
use std::fmt;
use std::sync::Arc;

/// Makes grammars for one model; clones share it.
#[derive(Clone, Debug)]
pub struct Grammars {
    vocabulary: Arc<Vocabulary>,
    limits: Limits,
}

/// What answers to one request are held to.
#[derive(Clone)]
pub struct Grammar {
    vocabulary: Arc<Vocabulary>,
    begins: Begins,
    /// At its start, for answers to copy. The copies share what the lexer learns.
    matcher: Matcher,
}

impl Grammars {
    /// `vocab_size` is the model's own, which may be larger than the tokenizer's.
    ///
    /// # Errors
    /// [`GrammarError::Tokenizer`].
    pub fn new(tokenizer: &Tokenizer, vocab_size: usize, limits: Limits) -> Result<Self, GrammarError> {
        let vocabulary = Arc::new(Vocabulary::new(tokenizer, vocab_size, &limits)?);
        Ok(Grammars { vocabulary, limits })
    }

    /// `None` when nothing is demanded. Takes milliseconds, for large schemas more: not for a thread that others
    /// wait for.
    ///
    /// # Errors
    /// [`GrammarError::Unusable`] for the first schema or pattern that an answer can't be held to.
    pub fn compile(&self, demand: &Demand) -> Result<Option<Grammar>, GrammarError> {
        let form = self.form(&demand.form).map_err(|trouble| trouble.at(Place::Form))?;
        match (&demand.calls, form) {
            (Calls::Unheld, None) => Ok(None),
            (Calls::Unheld, Some(form)) => {
                let matcher = self.compile_form(&form)?;
                Ok(Some(self.grammar(Begins::AtOnce, matcher)))
            }
            (Calls::Offered(rules), None) => {
                self.with_calls(rules, Begins::AtMarkup, |block| format!("start: block\n{block}"))
            }
            (Calls::Offered(rules), Some(form)) => {
                // Alone first, so that trouble has a place.
                self.compile_form(&form)?;
                let opening = self.block_opening();
                self.with_calls(rules, Begins::AtOnce, |block| {
                    format!("start: form | {opening} block\nform: {form}\n{block}")
                })
            }
            (Calls::Required(rules), _) => {
                let opening = self.block_opening();
                self.with_calls(rules, Begins::AtOnce, |block| format!("start: {opening} block\n{block}"))
            }
        }
    }

    /// The form of the answer as the body of a rule; `None` for free text.
    fn form(&self, form: &Form) -> Result<Option<String>, Trouble> {
        let most = self.limits.source_bytes;
        match form {
            Form::Text => Ok(None),
            Form::JsonObject => Ok(Some(lark::json(&json!({ "type": "object" })))),
            Form::JsonSchema(schema) => {
                schema::check(schema, &self.limits)?;
                Ok(Some(lark::json(schema)))
            }
            Form::Pattern(regex) if regex.is_empty() => Err(Trouble::new("", "the pattern is empty")),
            Form::Pattern(regex) if regex.len() > self.limits.pattern_bytes => {
                let (bytes, most) = (regex.len(), self.limits.pattern_bytes);
                Err(Trouble::new("", format!("the pattern has {bytes} bytes: at most {most} are possible")))
            }
            Form::Pattern(regex)
                if regex.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1 =>
            {
                Err(Trouble::new("", "the pattern ends in a backslash that escapes nothing"))
            }
            Form::Pattern(regex) => Ok(Some(lark::pattern(regex))),
            Form::Choice(choices) if choices.is_empty() || choices.iter().any(String::is_empty) => {
                Err(Trouble::new("", "a choice needs at least one text, and none that is empty"))
            }
            Form::Choice(choices) if choices.iter().map(String::len).sum::<usize>() > most => {
                Err(Trouble::new("", format!("the choices have more than {most} bytes")))
            }
            Form::Choice(choices) => {
                Ok(Some(choices.iter().map(|text| lark::literal(text)).collect::<Vec<_>>().join(" | ")))
            }
        }
    }

    fn compile_form(&self, form: &str) -> Result<Matcher, GrammarError> {
        let compiled = self.compile_text(format!("start: form\nform: {form}\n"));
        compiled.map_err(|reason| Trouble::new("", reason).at(Place::Form))
    }

    /// The blank line before a block, and the token that text can't spell.
    fn block_opening(&self) -> String {
        format!(r#""\n\n<" {}"#, lark::token(self.vocabulary.dsml))
    }

    fn with_calls(
        &self,
        rules: &CallRules,
        begins: Begins,
        whole: impl Fn(&str) -> String,
    ) -> Result<Option<Grammar>, GrammarError> {
        let (functions, most) = (rules.functions.len(), self.limits.functions);
        if functions == 0 || functions > most {
            let reason = format!("{functions} tools may be called: 1 to {most} are possible");
            return Err(Trouble::new("", reason).at(Place::Functions));
        }
        let mut reason = String::new();
        for preferences in [Preferences::Held, Preferences::Dropped] {
            let block = self.block(rules, preferences)?;
            match self.compile_text(whole(&block.text)) {
                Ok(matcher) => return Ok(Some(self.grammar(begins, matcher))),
                Err(error) => {
                    self.blame(rules, &block)?;
                    reason = error;
                }
            }
        }
        Err(Trouble::new("", reason).at(Place::Functions))
    }

    fn block(&self, rules: &CallRules, preferences: Preferences) -> Result<BlockRules, GrammarError> {
        calls::block(rules, preferences, self.vocabulary.dsml, &self.limits)
            .map_err(|(position, trouble)| trouble.at(Place::Function(rules.functions[position].index)))
    }

    /// Finds the function that must be held to its schema and can't be.
    fn blame(&self, rules: &CallRules, block: &BlockRules) -> Result<(), GrammarError> {
        for position in &block.held {
            let function = &rules.functions[*position];
            if !matches!(function.arguments, crate::Arguments::Exact(_)) {
                continue;
            }
            let alone = CallRules { functions: vec![function.clone()], count: rules.count };
            let block = self.block(&alone, Preferences::Held)?;
            self.compile_text(format!("start: block\n{}", block.text))
                .map_err(|reason| Trouble::new("", reason).at(Place::Function(function.index)))?;
        }
        Ok(())
    }

    fn compile_text(&self, text: String) -> Result<Matcher, String> {
        if text.len() > self.limits.grammar_bytes {
            let most = self.limits.grammar_bytes;
            return Err(format!(
                "all schemas together, with what they refer to, have more than {most} bytes"
            ));
        }
        let parser = self.vocabulary.factory.create_parser(TopLevelGrammar::from_lark(text));
        let mut matcher = Matcher::new(Ok(parser.map_err(|error| told(&error))?));
        // The first mask is the dearest, and tells whether there is any answer at all. It leaves its findings in
        // the lexer that the answers share.
        matcher.compute_mask().map_err(|error| told(&error))?;
        Ok(matcher)
    }

    fn grammar(&self, begins: Begins, matcher: Matcher) -> Grammar {
        Grammar { vocabulary: Arc::clone(&self.vocabulary), begins, matcher }
    }
}

impl Grammar {
    /// Holds one answer, from its first token on. `start` is how the prompt ended; the tokens of `ends` end an
    /// answer wherever the grammar has an end, as the model's own end token does.
    pub fn constraint(&self, start: Start, ends: &[u32]) -> Box<dyn Constraint> {
        let matcher = self.matcher.clone();
        Box::new(HeldAnswer::new(Arc::clone(&self.vocabulary), matcher, self.begins, start, ends))
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Grammar").field("begins", &self.begins).finish_non_exhaustive()
    }
}
