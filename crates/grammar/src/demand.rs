//! What an answer is held to, as plain data.

use serde_json::Value;

/// What comes behind the thinking: an answer of this form, or tool calls.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    pub form: Form,
    pub calls: Calls,
}

impl Demand {
    /// Whether every answer will do.
    pub fn is_nothing(&self) -> bool {
        matches!((&self.form, &self.calls), (Form::Text, Calls::Unheld))
    }
}

/// The form of an answer's text.
#[derive(Clone, Debug, Default)]
pub enum Form {
    /// Anything.
    #[default]
    Text,
    JsonObject,
    /// JSON that satisfies this schema.
    JsonSchema(Value),
    /// Text that this regular expression matches as a whole.
    Pattern(String),
    /// One of these texts.
    Choice(Vec<String>),
}

#[derive(Clone, Debug, Default)]
pub enum Calls {
    /// Left alone where the answer is free text, and impossible where it has another form.
    #[default]
    Unheld,
    /// Possible; a block of calls that begins must fit.
    Offered(CallRules),
    /// The answer is a block of calls and nothing else.
    Required(CallRules),
}

#[derive(Clone, Debug)]
pub struct CallRules {
    /// Those that may be called; at least one.
    pub functions: Vec<Function>,
    pub count: CallCount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallCount {
    One,
    /// One or more.
    Several,
}

#[derive(Clone, Debug)]
pub struct Function {
    /// What [`Place::Function`](crate::Place::Function) calls it.
    pub index: usize,
    pub name: String,
    pub arguments: Arguments,
}

#[derive(Clone, Debug)]
pub enum Arguments {
    /// Well-formed, and no more.
    Free,
    /// Held to a schema where that is possible, else [`Arguments::Free`].
    Preferred(Value),
    /// Held to a schema; one that is unusable is an error. Without one there are no arguments.
    Exact(Option<Value>),
}
