//! An answer's deltas to content blocks. Whole answers and streams are both made of what comes out here, so they cannot
//! disagree. Blocks are numbered from 0 and follow each other: one ends before the next begins.

use crate::messages::tools::EagerTools;
use overshot_chat::Delta;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockEvent<'a> {
    Start { index: usize, opening: Opening<'a> },
    Grow { index: usize, piece: BlockPiece<'a> },
    Stop { index: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening<'a> {
    Thinking,
    Text,
    ToolUse { id: &'a str, name: &'a str },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPiece<'a> {
    Thinking(&'a str),
    /// The last piece of thinking, whatever it says: clients drop thinking that has none.
    Signature(&'a str),
    Text(&'a str),
    InputJson(&'a str),
}

/// Says who thought it. There is nothing to verify: what comes back is read as it is.
const SIGNATURE: &str = "overshot";

pub struct BlockBuilder {
    eager: EagerTools,
    open: Option<Open>,
    next_index: usize,
    /// A call that is not whole yet and must not be told before.
    held: Option<HeldCall>,
    unparsed_tool_text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    Call,
}

struct HeldCall {
    id: String,
    name: String,
    arguments: String,
}

impl BlockBuilder {
    pub fn new(eager: EagerTools) -> Self {
        BlockBuilder { eager, open: None, next_index: 0, held: None, unparsed_tool_text: String::new() }
    }

    pub fn push(&mut self, delta: &Delta, tell: &mut impl FnMut(BlockEvent<'_>)) {
        match delta {
            Delta::Reasoning(text) => {
                self.text(Open::Thinking, Opening::Thinking, BlockPiece::Thinking(text), tell);
            }
            Delta::Content(text) => self.text(Open::Text, Opening::Text, BlockPiece::Text(text), tell),
            Delta::ToolCallStart { id, name, .. } if self.eager.has(name) => {
                self.begin(Open::Call, Opening::ToolUse { id, name }, tell);
            }
            Delta::ToolCallStart { id, name, .. } => {
                let (id, name, arguments) = (id.clone(), name.clone(), String::new());
                self.held = Some(HeldCall { id, name, arguments });
            }
            Delta::ToolCallArguments { text, .. } => match &mut self.held {
                Some(call) => call.arguments.push_str(text),
                None => self.grow(BlockPiece::InputJson(text), tell),
            },
            Delta::ToolCallEnd { .. } => {
                self.release(tell);
                self.close(tell);
            }
            // An eager one ends as it is: its JSON has no end.
            Delta::ToolCallWithdrawn { .. } => match self.held.take() {
                Some(_) => {}
                None => self.close(tell),
            },
            Delta::UnparsedToolText(text) => self.unparsed_tool_text.push_str(text),
        }
    }

    /// Ends what is open, a call that a limit has cut included. Gives what looked like calls and was none.
    pub fn finish(&mut self, tell: &mut impl FnMut(BlockEvent<'_>)) -> String {
        self.release(tell);
        self.close(tell);
        std::mem::take(&mut self.unparsed_tool_text)
    }

    fn text(
        &mut self,
        kind: Open,
        opening: Opening<'_>,
        piece: BlockPiece<'_>,
        tell: &mut impl FnMut(BlockEvent<'_>),
    ) {
        if self.open != Some(kind) {
            self.begin(kind, opening, tell);
        }
        self.grow(piece, tell);
    }

    fn release(&mut self, tell: &mut impl FnMut(BlockEvent<'_>)) {
        if let Some(HeldCall { id, name, arguments }) = self.held.take() {
            self.begin(Open::Call, Opening::ToolUse { id: &id, name: &name }, tell);
            self.grow(BlockPiece::InputJson(&arguments), tell);
        }
    }

    fn begin(&mut self, kind: Open, opening: Opening<'_>, tell: &mut impl FnMut(BlockEvent<'_>)) {
        self.close(tell);
        self.open = Some(kind);
        tell(BlockEvent::Start { index: self.next_index, opening });
    }

    fn grow(&mut self, piece: BlockPiece<'_>, tell: &mut impl FnMut(BlockEvent<'_>)) {
        if self.open.is_some() {
            tell(BlockEvent::Grow { index: self.next_index, piece });
        }
    }

    fn close(&mut self, tell: &mut impl FnMut(BlockEvent<'_>)) {
        let index = self.next_index;
        let Some(kind) = self.open.take() else { return };
        if kind == Open::Thinking {
            tell(BlockEvent::Grow { index, piece: BlockPiece::Signature(SIGNATURE) });
        }
        tell(BlockEvent::Stop { index });
        self.next_index += 1;
    }
}
