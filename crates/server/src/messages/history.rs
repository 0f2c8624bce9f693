//! A conversation in content blocks, to messages in the model's order. The model's format tells a turn as thinking, text
//! and calls, and what it is told between two of its turns as one turn: blocks are sorted into that, none is lost, and
//! what has no place there is refused by the path of its block.

use crate::error::ApiError;
use crate::messages::fields::{Block, Blocks, TurnFields, TurnRole};
use crate::messages::tools::DeclaredTools;
use overshot_chat::{Content, FunctionCall, FunctionTag, Message, Part, Role, ToolCall};

/// # Errors
/// A block that the model cannot read, a call at the end whose result is missing.
pub fn messages(
    system: Option<Blocks>,
    turns: Vec<TurnFields>,
    tools: &DeclaredTools,
) -> Result<Vec<Message>, ApiError> {
    let mut messages = Vec::new();
    if let Some(blocks) = system.filter(|blocks| !blocks.0.is_empty()) {
        messages.push(instructions(blocks, "system")?);
    }
    if turns.is_empty() {
        return Err(ApiError::field("messages", "messages is empty: at least one message is needed"));
    }
    let last = turns.len() - 1;
    for (index, TurnFields { role, content }) in turns.into_iter().enumerate() {
        let path = format!("messages[{index}].content");
        match role {
            TurnRole::System => messages.push(instructions(content, &path)?),
            TurnRole::User => told(content, &path, tools, &mut messages)?,
            TurnRole::Assistant => {
                let message = match messages.last_mut() {
                    Some(message) if message.role == Role::Assistant => message,
                    _ => messages.push_mut(Message::assistant("")),
                };
                said(content, &path, message)?;
                if index == last {
                    be_continued(message, &path)?;
                }
            }
        }
    }
    Ok(messages)
}

fn instructions(blocks: Blocks, path: &str) -> Result<Message, ApiError> {
    Ok(Message { content: texts(blocks, path)?, ..Message::system("") })
}

/// A user's blocks. Texts and results that follow each other are one turn of the model's format, in their order.
fn told(
    blocks: Blocks,
    path: &str,
    tools: &DeclaredTools,
    messages: &mut Vec<Message>,
) -> Result<(), ApiError> {
    if blocks.0.is_empty() {
        messages.push(Message::user(""));
    }
    for (index, block) in blocks.0.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        messages.push(match block.r#type.as_str() {
            "text" => Message::user(needed(block.text, &path, "text")?),
            "tool_result" => {
                let id = needed(block.tool_use_id, &path, "tool_use_id")?;
                let Blocks(found) = block.content.unwrap_or_default();
                let found = found.into_iter().map(|block| spelled_out(block, tools)).collect();
                let content = texts(Blocks(found), &format!("{path}.content"))?;
                Message { content, tool_call_id: Some(id), ..Message::new(Role::Tool, "") }
            }
            kind => return Err(no_place(kind, &path, "user")),
        });
    }
    Ok(())
}

/// A tool that a search has found is told where it was found.
fn spelled_out(block: Block, tools: &DeclaredTools) -> Block {
    match &block.tool_name {
        Some(name) if block.r#type == "tool_reference" => {
            Block { r#type: "text".into(), text: Some(tools.spelled(name).to_owned()), ..Block::default() }
        }
        _ => block,
    }
}

/// An assistant's blocks, added to its turn.
fn said(blocks: Blocks, path: &str, message: &mut Message) -> Result<(), ApiError> {
    for (index, block) in blocks.0.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        match block.r#type.as_str() {
            "text" => add_text(message, needed(block.text, &path, "text")?),
            "thinking" => add_thinking(message, &needed(block.thinking, &path, "thinking")?),
            // Only who encrypted it could read it.
            "redacted_thinking" => {}
            "tool_use" => message.tool_calls.push(call(block, &path)?),
            kind => return Err(no_place(kind, &path, "assistant")),
        }
    }
    Ok(())
}

fn add_text(message: &mut Message, text: String) {
    let part = Part { kind: "text".into(), text: Some(text) };
    match &mut message.content {
        Content::Parts(parts) => parts.push(part),
        content => *content = Content::Parts(vec![part]),
    }
}

fn add_thinking(message: &mut Message, thinking: &str) {
    match &mut message.reasoning_content {
        Some(so_far) => {
            so_far.push_str("\n\n");
            so_far.push_str(thinking);
        }
        none => *none = Some(thinking.to_owned()),
    }
}

fn call(block: Block, path: &str) -> Result<ToolCall, ApiError> {
    let arguments = block.input.as_deref().map_or("{}", |input| input.get());
    if !arguments.starts_with('{') {
        let param = format!("{path}.input");
        return Err(ApiError::field(&param, format!("{param} is no object")));
    }
    let function = FunctionCall { name: needed(block.name, path, "name")?, arguments: arguments.to_owned() };
    Ok(ToolCall { id: needed(block.id, path, "id")?, kind: FunctionTag::Function, function })
}

/// The last message is the assistant's: the answer goes on where it ends.
fn be_continued(message: &mut Message, path: &str) -> Result<(), ApiError> {
    if !message.tool_calls.is_empty() {
        let message = format!("{path} ends with a tool_use: a user message with its tool_result must follow");
        return Err(ApiError::field(path, message));
    }
    message.wo_eos = true;
    Ok(())
}

/// Content of text blocks only.
fn texts(blocks: Blocks, path: &str) -> Result<Content, ApiError> {
    let text = |(index, block): (usize, Block)| {
        let path = format!("{path}[{index}]");
        match block.r#type.as_str() {
            "text" => Ok(Part { kind: "text".into(), text: Some(needed(block.text, &path, "text")?) }),
            kind => Err(unreadable(kind, &path)),
        }
    };
    Ok(Content::Parts(blocks.0.into_iter().enumerate().map(text).collect::<Result<_, _>>()?))
}

fn needed(field: Option<String>, path: &str, name: &str) -> Result<String, ApiError> {
    field.ok_or_else(|| {
        let param = format!("{path}.{name}");
        ApiError::field(&param, format!("{param} is missing"))
    })
}

fn no_place(kind: &str, path: &str, role: &str) -> ApiError {
    match kind {
        "thinking" | "redacted_thinking" | "tool_use" | "tool_result" => {
            let param = format!("{path}.type");
            ApiError::field(&param, format!("{param} is `{kind}`, which is not for the {role}'s messages"))
        }
        kind => unreadable(kind, path),
    }
}

fn unreadable(kind: &str, path: &str) -> ApiError {
    let param = format!("{path}.type");
    ApiError::field(
        &param,
        format!("{param} is `{kind}`, which is not supported here: the model reads text only"),
    )
}
