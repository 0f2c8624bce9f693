//! Messages as turns: what rendering does before it writes anything. Tool results become parts of user turns
//! and take the order of the calls they answer; old thinking is dropped.

use std::collections::HashMap;

use serde_json::value::RawValue;

use crate::{ChatError, Message, Role, Task, Tool};

/// A part of a user's turn.
#[derive(Clone, Debug)]
pub enum TurnBlock {
    Text(String),
    Result { call_id: String, text: String },
}

/// A message, or a run of user and tool messages.
#[derive(Clone, Debug)]
pub struct Turn<'a> {
    /// Never `Tool`: a turn of results is a user's.
    pub role: Role,
    /// The message itself; of a user's turn, its first one.
    pub message: &'a Message,
    /// Of a user's turn only.
    pub blocks: Vec<TurnBlock>,
    pub task: Option<Task>,
    pub tools: Vec<&'a Tool>,
    pub response_schema: Option<&'a RawValue>,
    reasoning_dropped: bool,
}

impl<'a> Turn<'a> {
    pub fn new(message: &'a Message) -> Turn<'a> {
        Turn {
            role: if message.role == Role::Tool { Role::User } else { message.role },
            message,
            blocks: Vec::new(),
            task: message.task,
            tools: message.tools.iter().collect(),
            response_schema: message.response_format.as_deref(),
            reasoning_dropped: false,
        }
    }

    pub fn reasoning(&self) -> Option<&str> {
        self.message.reasoning_content.as_deref().filter(|_| !self.reasoning_dropped)
    }
}

/// Checks each message's fields against its role and folds runs of user and tool messages into turns.
pub fn fold(messages: &[Message]) -> Result<Vec<Turn<'_>>, ChatError> {
    let mut turns: Vec<Turn> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        check_fields(index, message)?;
        let previous = turns.last_mut().filter(|turn| turn.role == Role::User);
        let text = message.content.to_text();
        match (message.role, previous) {
            (Role::Tool, previous) => {
                let call_id = message.tool_call_id.clone().unwrap_or_default();
                let block = TurnBlock::Result { call_id, text };
                match previous {
                    Some(turn) => turn.blocks.push(block),
                    None => turns.push(Turn { blocks: vec![block], ..Turn::new(message) }),
                }
            }
            (Role::User, Some(turn)) if turn.task.is_none() => {
                turn.blocks.push(TurnBlock::Text(text));
                turn.task = message.task;
            }
            (Role::User, _) => {
                turns.push(Turn { blocks: vec![TurnBlock::Text(text)], ..Turn::new(message) });
            }
            _ => turns.push(Turn::new(message)),
        }
    }
    Ok(turns)
}

/// A field that the role cannot render would be lost without a word, so it is refused.
fn check_fields(index: usize, message: &Message) -> Result<(), ChatError> {
    let instructs = matches!(message.role, Role::System | Role::Developer);
    let asks = matches!(message.role, Role::User | Role::Developer);
    let rules = [
        ("tools", !message.tools.is_empty() && !instructs, "belongs to system and developer messages"),
        (
            "response_format",
            message.response_format.is_some() && !instructs,
            "belongs to system and developer messages",
        ),
        ("task", message.task.is_some() && !asks, "belongs to user and developer messages"),
        (
            "tool_calls",
            !message.tool_calls.is_empty() && message.role != Role::Assistant,
            "belongs to assistant messages",
        ),
    ];
    match rules.into_iter().find(|(_, broken, _)| *broken) {
        Some((field, _, reason)) => Err(ChatError::Message { index, field, reason: reason.to_string() }),
        None => Ok(()),
    }
}

/// Within each turn, puts results in the order of the calls of the last assistant turn that made any. Texts
/// keep their places; results of unknown calls count as answers to the first call.
pub fn order_results(turns: &mut [Turn]) {
    let mut order: HashMap<&str, usize> = HashMap::new();
    for turn in turns {
        let calls = &turn.message.tool_calls;
        if turn.role == Role::Assistant && !calls.is_empty() {
            order = calls.iter().enumerate().map(|(position, call)| (call.id.as_str(), position)).collect();
            order.remove("");
        }
        let is_result = |block: &TurnBlock| matches!(block, TurnBlock::Result { .. });
        let mut results: Vec<TurnBlock> =
            turn.blocks.iter().filter(|block| is_result(block)).cloned().collect();
        results.sort_by_key(|block| match block {
            TurnBlock::Result { call_id, .. } => order.get(call_id.as_str()).copied().unwrap_or(0),
            TurnBlock::Text(_) => 0,
        });
        let places = turn.blocks.iter_mut().filter(|block| is_result(block));
        for (place, result) in places.zip(results) {
            *place = result;
        }
    }
}

/// Before the last user or developer turn, assistants lose their reasoning and developer turns vanish.
pub fn drop_old_thinking(turns: &mut Vec<Turn>) {
    let is_user = |turn: &Turn| matches!(turn.role, Role::User | Role::Developer);
    let Some(last_user) = turns.iter().rposition(is_user) else { return };
    let mut position = 0;
    turns.retain_mut(|turn| {
        let is_old = position < last_user;
        position += 1;
        turn.reasoning_dropped = is_old && turn.role == Role::Assistant;
        !(is_old && turn.role == Role::Developer)
    });
}
