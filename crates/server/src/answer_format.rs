//! What an answer is held to, in no API's words; each API fills an [`AnswerFormat`] from its own fields. Here it meets
//! the declared tools, and becomes the grammar that the engine's requests carry.

use crate::error::ApiError;
use overshot_chat::{Start, Tokenizer, Tool, ToolChoice};
use overshot_engine::Request;
use overshot_grammar::{
    Arguments, CallCount, CallRules, Calls, Demand, Form, Function, GrammarError, Grammars, Limits, Place,
};
use serde::Deserialize;
use serde_json::Value;
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// The form of an answer and the calls in it, as a request asks for them.
#[derive(Clone, Debug)]
pub struct AnswerFormat {
    pub form: Form,
    pub calls: CallChoice,
    pub count: CallCount,
    /// Tools of the request that may be called though the prompt does not list them.
    pub unlisted: Vec<Tool>,
    pub fields: FieldNames,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CallChoice {
    #[default]
    Auto,
    None,
    Required,
    Named(String),
}

/// What an API calls the places where trouble may lie.
#[derive(Clone, Debug)]
pub struct FieldNames {
    pub form: String,
    /// The tools, listed and unlisted; one that is not told of here is `tools[index]`.
    pub tools: Vec<String>,
    /// A tool's schema, within the tool.
    pub schema: &'static str,
}

impl Default for AnswerFormat {
    fn default() -> Self {
        AnswerFormat {
            form: Form::Text,
            calls: CallChoice::Auto,
            count: CallCount::Several,
            unlisted: Vec::new(),
            fields: FieldNames {
                form: "response_format".into(),
                tools: Vec::new(),
                schema: "function.parameters",
            },
        }
    }
}

impl CallChoice {
    /// What it means for reading the output.
    pub fn reading(&self) -> ToolChoice {
        match self {
            CallChoice::None => ToolChoice::None,
            CallChoice::Auto | CallChoice::Required | CallChoice::Named(_) => ToolChoice::Auto,
        }
    }
}

/// A tool's function, as far as it matters here.
#[derive(Deserialize)]
struct Declared {
    name: String,
    strict: Option<bool>,
    parameters: Option<Value>,
}

impl AnswerFormat {
    /// `tools` are those of the request; `others` stand in its messages, and are held to the form alone.
    ///
    /// # Errors
    /// A choice among tools that are not there.
    pub fn demand(&self, tools: &[Tool], others: &[Tool]) -> Result<Demand, ApiError> {
        let form = self.form.clone();
        if self.calls == CallChoice::None || (self.calls == CallChoice::Auto && tools.is_empty()) {
            return Ok(Demand { form, calls: Calls::Unheld });
        }
        let mut functions = Vec::new();
        let own_tools = tools.len() + self.unlisted.len();
        for (index, tool) in tools.iter().chain(&self.unlisted).chain(others).enumerate() {
            let mut declared: Declared = serde_json::from_str(tool.function.get()).map_err(|error| {
                ApiError::field(
                    format!("tools[{index}].function"),
                    format!("tools[{index}].function: {error}"),
                )
            })?;
            if index >= own_tools {
                declared = Declared { strict: None, parameters: None, ..declared };
            }
            functions.push(self.function(index, declared));
        }
        let is_strict = |function: &Function| matches!(function.arguments, Arguments::Exact(_));
        let has_something_to_hold = self.count == CallCount::One || functions.iter().any(is_strict);
        let is_text = matches!(form, Form::Text);
        let rules = CallRules { functions, count: self.count };
        let calls = match &self.calls {
            CallChoice::None => Calls::Unheld,
            CallChoice::Auto if is_text && !has_something_to_hold => Calls::Unheld,
            CallChoice::Auto => Calls::Offered(rules),
            CallChoice::Required if rules.functions.is_empty() => {
                return Err(ApiError::field(
                    "tool_choice",
                    "tool_choice asks for a call, and there are no tools",
                ));
            }
            CallChoice::Required => Calls::Required(rules),
            CallChoice::Named(name) => Calls::Required(only(rules, name)?),
        };
        Ok(Demand { form, calls })
    }

    fn function(&self, index: usize, declared: Declared) -> Function {
        let Declared { name, strict, parameters } = declared;
        let arguments = match (strict, parameters) {
            (Some(true), schema) => Arguments::Exact(schema.filter(|schema| !schema.is_null())),
            (_, Some(schema)) if self.calls != CallChoice::Auto => Arguments::Preferred(schema),
            _ => Arguments::Free,
        };
        Function { index, name, arguments }
    }
}

/// One call, of that function.
fn only(mut rules: CallRules, name: &str) -> Result<CallRules, ApiError> {
    rules.functions.retain(|function| function.name == name);
    if rules.functions.is_empty() {
        let shown: String = name.chars().take(64).collect();
        return Err(ApiError::field(
            "tool_choice",
            format!("tool_choice names `{shown}`, which no tool is called"),
        ));
    }
    Ok(CallRules { count: CallCount::One, ..rules })
}

/// What the answers to one prompt are held to, not yet compiled.
#[derive(Clone, Debug)]
pub struct HeldTo {
    pub demand: Demand,
    pub start: Start,
    pub fields: FieldNames,
}

/// Makes the grammars of one model, a few at a time and where no connection waits for them.
pub struct GrammarMaker {
    source: Arc<GrammarSource>,
    permits: Arc<Semaphore>,
}

struct GrammarSource {
    tokenizer: Tokenizer,
    vocab_size: usize,
    made: OnceLock<Result<Grammars, GrammarError>>,
}

impl GrammarSource {
    /// Reads the vocabulary when it is first asked for.
    fn grammars(&self) -> Result<&Grammars, GrammarError> {
        let make = || Grammars::new(&self.tokenizer, self.vocab_size, Limits::default());
        self.made.get_or_init(make).as_ref().map_err(GrammarError::clone)
    }
}

impl GrammarMaker {
    pub fn new(tokenizer: &Tokenizer, vocab_size: usize, at_once: usize) -> Self {
        let source = GrammarSource { tokenizer: tokenizer.clone(), vocab_size, made: OnceLock::new() };
        GrammarMaker { source: Arc::new(source), permits: Arc::new(Semaphore::new(at_once)) }
    }

    /// Reads the vocabulary beside whatever else goes on: for a large one it takes a second or more, which the first
    /// request would wait for.
    pub fn prepare(&self) {
        let source = Arc::clone(&self.source);
        // Without a thread, that request does wait.
        let _ =
            std::thread::Builder::new().name("vocabulary".into()).spawn(move || source.grammars().is_ok());
    }

    /// Holds requests to what was asked.
    ///
    /// # Errors
    /// A schema or pattern that no answer can be held to, by its field.
    pub async fn hold(&self, requests: &mut [Request], held: HeldTo) -> Result<(), ApiError> {
        let HeldTo { demand, start, fields } = held;
        let source = Arc::clone(&self.source);
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let compile = move || {
            let _permit = permit;
            source.grammars()?.compile(&demand)
        };
        let compiled = match spawn_blocking(compile).await {
            Ok(compiled) => compiled.map_err(|error| fields.blame(error))?,
            Err(_) => return Err(ApiError::Failed("compiling the grammar failed".into())),
        };
        if let Some(grammar) = compiled {
            for request in requests {
                request.constraint = Some(grammar.constraint(start, &request.stop_tokens));
            }
        }
        Ok(())
    }
}

impl FieldNames {
    fn tool(&self, index: usize) -> String {
        self.tools.get(index).cloned().unwrap_or_else(|| format!("tools[{index}]"))
    }

    fn blame(&self, error: GrammarError) -> ApiError {
        let GrammarError::Unusable { place, path, reason } = error else {
            return ApiError::Failed(error.to_string());
        };
        let param = match place {
            Place::Form => format!("{}{path}", self.form),
            Place::Function(index) => format!("{}.{}{path}", self.tool(index), self.schema),
            Place::Functions => "tools".to_string(),
        };
        let message = format!("{param}: {reason}");
        ApiError::field(param, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tools(strict: bool) -> Vec<Tool> {
        let tool = |name: &str| json!({"function": {"name": name, "strict": strict, "parameters": {"type": "object"}}});
        [tool("f"), tool("g")].map(|tool| serde_json::from_value(tool).unwrap()).to_vec()
    }

    fn calls(choice: CallChoice, strict: bool) -> Calls {
        let format = AnswerFormat { calls: choice, ..AnswerFormat::default() };
        format.demand(&tools(strict), &[]).unwrap().calls
    }

    #[test]
    fn only_what_was_asked_for_is_held() {
        assert!(matches!(calls(CallChoice::Auto, false), Calls::Unheld));
        assert!(matches!(calls(CallChoice::None, true), Calls::Unheld));
        let Calls::Offered(rules) = calls(CallChoice::Auto, true) else { panic!() };
        assert!(matches!(rules.functions[1].arguments, Arguments::Exact(Some(_))));
        let Calls::Required(rules) = calls(CallChoice::Required, false) else { panic!() };
        assert!(matches!(rules.functions[0].arguments, Arguments::Preferred(_)));
        let Calls::Required(rules) = calls(CallChoice::Named("g".into()), false) else { panic!() };
        assert_eq!((rules.functions.len(), rules.functions[0].index, rules.count), (1, 1, CallCount::One));
        let one = AnswerFormat { count: CallCount::One, ..AnswerFormat::default() };
        let Calls::Offered(rules) = one.demand(&tools(false), &tools(true)).unwrap().calls else { panic!() };
        assert_eq!(rules.functions.len(), 4);
        assert!(rules.functions.iter().all(|function| matches!(function.arguments, Arguments::Free)));
    }

    #[test]
    fn a_choice_among_nothing_is_refused() {
        let asking = |calls: CallChoice, tools: &[Tool]| {
            AnswerFormat { calls, ..AnswerFormat::default() }.demand(tools, &[]).unwrap_err().to_string()
        };
        assert!(asking(CallChoice::Required, &[]).contains("no tools"));
        assert!(asking(CallChoice::Named("h".into()), &tools(false)).contains("`h`"));
    }
}
