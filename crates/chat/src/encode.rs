//! Messages to the prompt that the model was trained on, byte for byte. Four steps, in this order: results of
//! tools fold into user turns, results take the order of their calls, old thinking is dropped, turns are
//! written out. What users, tools and clients wrote only ever becomes `Text` pieces.
//!
//! The texts of markers are in `special.rs`, the checkpoint's own texts in `prompts.rs`, JSON in
//! `python_json.rs`.

use std::collections::HashMap;

use serde_json::value::RawValue;

use crate::parse::Start;
use crate::pieces::Piece;
use crate::python_json::Json;
use crate::turns::{self, Turn, TurnBlock};
use crate::{
    ChatError, Effort, Message, Pieces, PromptTexts, Role, Special, Task, Tokenizer, Tool, ToolCall,
};

/// How a conversation is rendered.
#[derive(Clone, Debug)]
pub struct RenderOptions {
    /// `Effort::None` renders for an answer without thinking.
    pub effort: Effort,
    /// Leaves out what the assistant thought before the last user message. Declared tools switch this off,
    /// whatever is said here.
    pub drop_thinking: bool,
    /// Functions declared by the request; they go to the first system message (an empty one is put first if
    /// there is none).
    pub tools: Vec<Tool>,
    /// JSON schema that the answer must satisfy; goes the same way.
    pub response_schema: Option<Box<RawValue>>,
    /// Exact texts of earlier calls by call id (`Delta::ToolCallEnd`): with them the history has the tokens
    /// that the model wrote, and a cached prefix stays valid.
    pub call_texts: HashMap<String, Pieces>,
}

impl Default for RenderOptions {
    fn default() -> RenderOptions {
        RenderOptions {
            effort: Effort::None,
            drop_thinking: true,
            tools: Vec::new(),
            response_schema: None,
            call_texts: HashMap::new(),
        }
    }
}

/// A rendered conversation, up to the point where the model goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    pieces: Pieces,
}

impl Prompt {
    /// The prompt as one string, as the published encoder gives it.
    pub fn text(&self) -> String {
        self.pieces.text()
    }

    /// The prompt's token ids; text of users and tools never becomes a special token.
    ///
    /// # Errors
    /// As in [`Pieces::ids`].
    pub fn ids(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, ChatError> {
        self.pieces.ids(tokenizer)
    }

    /// What the model's output begins with.
    pub fn start(&self) -> Start {
        match self.pieces.last() {
            Some(Piece::Special(Special::ThinkOpen)) => Start::Reasoning,
            _ => Start::Content,
        }
    }

    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }
}

/// Renders a conversation.
///
/// # Errors
/// [`ChatError::Message`] for a field in a role that cannot have it or for broken JSON in one,
/// [`ChatError::Request`] for the same in `options`, [`ChatError::NoPromptText`] if the checkpoint lacks a
/// text that is needed.
pub fn render(
    messages: &[Message],
    options: &RenderOptions,
    texts: &PromptTexts,
) -> Result<Prompt, ChatError> {
    let empty_system = Message::system("");
    let request_fields = !options.tools.is_empty() || options.response_schema.is_some();
    let no_system = !messages.iter().any(|message| message.role == Role::System);
    let mut turns = turns::fold(messages)?;
    if request_fields && no_system {
        turns.insert(0, Turn::new(&empty_system));
    }
    if let Some(system) = turns.iter_mut().find(|turn| turn.role == Role::System) {
        system.tools.extend(&options.tools);
        system.response_schema = system.response_schema.or(options.response_schema.as_deref());
    }
    turns::order_results(&mut turns);

    let thinks = options.effort.thinks();
    let drop_thinking = options.drop_thinking && turns.iter().all(|turn| turn.tools.is_empty());
    if thinks && drop_thinking {
        turns::drop_old_thinking(&mut turns);
    }
    let last_user = turns.iter().rposition(|turn| matches!(turn.role, Role::User | Role::Developer));
    let writer = Writer { turns: &turns, thinks, drop_thinking, last_user, options, texts };
    let mut pieces = Pieces::default();
    pieces.special(Special::BeginOfSentence);
    if thinks && let Some(text) = texts.effort_text(options.effort)? {
        pieces.template(text);
    }
    for index in 0..turns.len() {
        writer.turn(index, &mut pieces)?;
    }
    Ok(Prompt { pieces })
}

struct Writer<'a> {
    turns: &'a [Turn<'a>],
    thinks: bool,
    drop_thinking: bool,
    last_user: Option<usize>,
    options: &'a RenderOptions,
    texts: &'a PromptTexts,
}

impl Writer<'_> {
    fn turn(&self, index: usize, out: &mut Pieces) -> Result<(), ChatError> {
        let turn = &self.turns[index];
        match turn.role {
            Role::System => self.instructions(turn, out)?,
            Role::Developer => {
                out.special(Special::User);
                self.instructions(turn, out)?;
                self.go_on(index, out);
            }
            Role::User | Role::Tool => {
                out.special(Special::User);
                blocks(turn, out);
                self.go_on(index, out);
            }
            Role::LatestReminder => {
                out.special(Special::LatestReminder);
                out.push_text(&turn.message.content.to_text());
            }
            Role::Assistant => self.assistant(index, out),
        }
        Ok(())
    }

    /// Text of a system or developer message with the functions and the schema it declares.
    fn instructions(&self, turn: &Turn, out: &mut Pieces) -> Result<(), ChatError> {
        out.push_text(&turn.message.content.to_text());
        if !turn.tools.is_empty() {
            let (before, behind) = self.texts.around_tools()?;
            out.template("\n\n");
            out.template(before);
            for (position, tool) in turn.tools.iter().enumerate() {
                if position > 0 {
                    out.template("\n");
                }
                out.push_text(&self.json(&tool.function, "tools")?.to_python_text());
            }
            out.template(behind);
        }
        if let Some(schema) = turn.response_schema {
            let schema = self.json(schema, "response_format")?;
            if schema.is_truthy() {
                out.template("\n\n");
                out.template(self.texts.before_schema()?);
                out.push_text(&schema.to_python_text());
            }
        }
        Ok(())
    }

    fn json(&self, raw: &RawValue, field: &str) -> Result<Json, ChatError> {
        Json::parse(raw.get()).map_err(|_| ChatError::Request {
            field: field.to_string(),
            reason: "holds JSON that is malformed or nested more than 128 deep".to_string(),
        })
    }

    fn assistant(&self, index: usize, out: &mut Pieces) {
        let turn = &self.turns[index];
        let answers_task = index > 0 && self.turns[index - 1].task.is_some();
        let is_recent = self.last_user.is_none_or(|last| index > last);
        if self.thinks && !answers_task && (!self.drop_thinking || is_recent) {
            out.push_text(turn.reasoning().unwrap_or(""));
            out.special(Special::ThinkClose);
        }
        out.push_text(&turn.message.content.to_text());
        if !turn.message.tool_calls.is_empty() {
            self.calls(&turn.message.tool_calls, out);
        }
        if !turn.message.wo_eos {
            out.special(Special::EndOfSentence);
        }
    }

    fn calls(&self, calls: &[ToolCall], out: &mut Pieces) {
        out.template("\n\n");
        tag("<", "tool_calls>\n", out);
        for (position, call) in calls.iter().enumerate() {
            if position > 0 {
                out.template("\n");
            }
            match self.options.call_texts.get(&call.id).filter(|_| !call.id.is_empty()) {
                Some(exact) => out.extend(exact),
                None => invoke(call, out),
            }
        }
        out.template("\n");
        tag("</", "tool_calls>", out);
    }

    /// What follows a user's turn when the model, or what it once said, comes next.
    fn go_on(&self, index: usize, out: &mut Pieces) {
        let next_role = self.turns.get(index + 1).map(|turn| turn.role);
        if !matches!(next_role, None | Some(Role::Assistant | Role::LatestReminder)) {
            return;
        }
        let is_last_user = self.last_user.is_none_or(|last| index >= last);
        let think = match self.thinks && (!self.drop_thinking || is_last_user) {
            true => Special::ThinkOpen,
            false => Special::ThinkClose,
        };
        match self.turns[index].task {
            None => {
                out.special(Special::Assistant);
                out.special(think);
            }
            Some(Task::Action) => {
                out.special(Special::Assistant);
                out.special(think);
                out.special(Special::Task(Task::Action));
            }
            Some(task) => out.special(Special::Task(task)),
        }
    }
}

fn blocks(turn: &Turn, out: &mut Pieces) {
    for (position, block) in turn.blocks.iter().enumerate() {
        if position > 0 {
            out.template("\n\n");
        }
        match block {
            TurnBlock::Text(text) => out.push_text(text),
            TurnBlock::Result { text, .. } => {
                out.template("<tool_result>");
                out.push_text(text);
                out.template("</tool_result>");
            }
        }
    }
}

fn tag(open: &str, rest: &str, out: &mut Pieces) {
    out.template(open);
    out.special(Special::Dsml);
    out.template(rest);
}

fn invoke(call: &ToolCall, out: &mut Pieces) {
    tag("<", "invoke name=\"", out);
    out.push_text(&call.function.name);
    out.template("\">\n");
    let arguments = match Json::parse(&call.function.arguments) {
        Ok(Json::Object(entries)) => entries,
        // What is no object stays readable for the model as one piece of text.
        _ => vec![("arguments".to_string(), Json::String(call.function.arguments.clone()))],
    };
    for (position, (key, value)) in arguments.iter().enumerate() {
        if position > 0 {
            out.template("\n");
        }
        tag("<", "parameter name=\"", out);
        out.push_text(key);
        match value {
            Json::String(text) => {
                out.template("\" string=\"true\">");
                out.push_text(text);
            }
            other => {
                out.template("\" string=\"false\">");
                out.push_text(&other.to_python_text());
            }
        }
        tag("</", "parameter>", out);
    }
    out.template("\n");
    tag("</", "invoke>", out);
}
