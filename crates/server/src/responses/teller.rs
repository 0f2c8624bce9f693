//! Tells an answer as the items of a response and as events, both from the same pieces: a stream, a whole response and
//! one that is fetched later cannot disagree.
//!
//! An item stands in the output from its first piece on. A call is reported done only if it is whole: of one that was
//! cut, or that proved to be none, clients never hear that it is done, so none of them runs it.

use super::events::{CallFields, Events, ItemFields, PartFields, ResponseFields, TextField, TextFields};
use super::items::{
    CallItem, Item, ItemIds, ItemStatus, MessageItem, PLAIN_CONTENT, Part, ReasoningItem, ToolKind,
};
use super::response::{Failure, IncompleteDetails, Response, Status, Usage};
use super::tools::{Tools, custom_input};
use crate::app::now;
use crate::choice::Piece;
use crate::dialect::AllCounts;
use crate::error::ApiError;
use crate::wire::ChatLogprobs;
use bytes::BytesMut;
use overshot_chat::{Delta, FinishReason, Role, Tokenizer};
use std::collections::BTreeMap;

/// Whether thinking is also given in the form that clients send back unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncryptedContent {
    Told,
    Left,
}

pub struct Teller {
    pub response: Response,
    ids: ItemIds,
    events: Events,
    tools: Tools,
    tokenizer: Tokenizer,
    encrypted: EncryptedContent,
    /// The item that text or thinking goes on in: always the last of the output.
    open: Option<Open>,
    /// Where the calls that are not whole stand in the output, by their index in the answer.
    calls: BTreeMap<usize, Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Message(Place),
    Reasoning(Place),
}

/// An item's place in the output.
type Place = usize;

impl Teller {
    pub fn new(response: Response, tools: Tools, tokenizer: Tokenizer, encrypted: EncryptedContent) -> Self {
        let ids = ItemIds::new(&response.id);
        let (events, calls) = (Events::default(), BTreeMap::new());
        Teller { response, ids, events, tools, tokenizer, encrypted, open: None, calls }
    }

    /// That there is a response at all, and whether it has to wait.
    pub fn begin(&mut self, out: &mut BytesMut) {
        self.tell_response("response.created", out);
        if self.response.status == Status::Queued {
            self.tell_response("response.queued", out);
        } else {
            self.tell_response("response.in_progress", out);
        }
    }

    pub fn piece(&mut self, piece: &Piece, out: &mut BytesMut) {
        if self.response.status == Status::Queued {
            self.response.status = Status::InProgress;
            self.tell_response("response.in_progress", out);
        }
        match &piece.delta {
            // Log probabilities of what is no text have no place in this API.
            None => {}
            Some(Delta::Content(text)) => self.say(text, piece, out),
            Some(Delta::Reasoning(text)) => self.think(text, out),
            Some(Delta::ToolCallStart { index, id, name }) => self.begin_call(*index, id, name, out),
            Some(Delta::ToolCallArguments { index, text }) => self.go_on_calling(*index, text, out),
            Some(Delta::ToolCallEnd { index, .. }) => self.end_call(*index, out),
            Some(Delta::ToolCallWithdrawn { index }) => {
                if let Some(place) = self.calls.remove(index) {
                    self.give_up_call(place, out);
                }
            }
            Some(Delta::UnparsedToolText(text)) => self.keep_unparsed(text, out),
        }
    }

    /// The answer's end: nothing more comes but the counts.
    pub fn finish(&mut self, reason: FinishReason, out: &mut BytesMut) {
        let is_cut = reason == FinishReason::Length;
        self.close(if is_cut { ItemStatus::Incomplete } else { ItemStatus::Completed }, out);
        self.give_up_calls(out);
        self.response.status = if is_cut { Status::Incomplete } else { Status::Completed };
        self.response.incomplete_details = is_cut.then_some(IncompleteDetails::MAX_OUTPUT_TOKENS);
    }

    pub fn end(&mut self, counts: AllCounts, out: &mut BytesMut) {
        self.response.usage = Some(Usage::new(counts));
        self.response.completed_at = (self.response.status == Status::Completed).then(now);
        self.tell_response(
            match self.response.status {
                Status::Incomplete => "response.incomplete",
                _ => "response.completed",
            },
            out,
        );
    }

    pub fn fail(&mut self, error: &ApiError, out: &mut BytesMut) {
        self.response.error = Some(Failure::new(error));
        self.stop(Status::Failed, "response.failed", out);
    }

    pub fn cancel(&mut self, out: &mut BytesMut) {
        self.stop(Status::Cancelled, "response.cancelled", out);
    }

    fn stop(&mut self, status: Status, event: &str, out: &mut BytesMut) {
        if let Some(Open::Message(place) | Open::Reasoning(place)) = self.open.take() {
            self.response.output[place].set_status(ItemStatus::Incomplete);
        }
        self.give_up_calls(out);
        self.response.status = status;
        self.tell_response(event, out);
    }

    fn give_up_calls(&mut self, out: &mut BytesMut) {
        for place in std::mem::take(&mut self.calls).into_values() {
            self.give_up_call(place, out);
        }
    }

    /// What a custom tool was to be given was not told yet. It stays what it is, JSON without an end, which is nobody's
    /// input.
    fn give_up_call(&mut self, place: Place, out: &mut BytesMut) {
        let Item::Call(call) = &mut self.response.output[place] else { return };
        call.status = ItemStatus::Incomplete;
        if call.kind == ToolKind::Custom && !call.given.is_empty() {
            let text = TextField::Delta(&call.given);
            let fields = CallFields { item_id: &call.id, output_index: place, text };
            self.events.put("response.custom_tool_call_input.delta", &fields, out);
        }
    }

    fn say(&mut self, text: &str, piece: &Piece, out: &mut BytesMut) {
        let place = self.message(out);
        let logprobs = ChatLogprobs::new(&self.tokenizer, &piece.logprobs).into_content();
        let Item::Message(message) = &mut self.response.output[place] else { return };
        if message.content.is_empty() {
            let part = Part::output_text(String::new());
            let fields =
                PartFields { item_id: &message.id, output_index: place, content_index: 0, part: &part };
            self.events.put("response.content_part.added", &fields, out);
            message.content.push(part);
        }
        let fields = TextFields {
            item_id: &message.id,
            output_index: place,
            content_index: 0,
            text: TextField::Delta(text),
            logprobs: Some(&logprobs),
        };
        self.events.put("response.output_text.delta", &fields, out);
        if let Some(Part::OutputText { text: said, logprobs: all, .. }) = message.content.first_mut() {
            said.push_str(text);
            all.extend(logprobs);
        }
    }

    fn think(&mut self, text: &str, out: &mut BytesMut) {
        let place = match self.open {
            Some(Open::Reasoning(place)) => place,
            _ => self.begin_thinking(out),
        };
        let Item::Reasoning(reasoning) = &mut self.response.output[place] else { return };
        let fields = TextFields {
            item_id: &reasoning.id,
            output_index: place,
            content_index: 0,
            text: TextField::Delta(text),
            logprobs: None,
        };
        self.events.put("response.reasoning_text.delta", &fields, out);
        if let Some(Part::ReasoningText { text: thought }) = reasoning.content.first_mut() {
            thought.push_str(text);
        }
    }

    fn begin_thinking(&mut self, out: &mut BytesMut) -> Place {
        let place = self.add(out, |ids, place| {
            Item::Reasoning(ReasoningItem {
                id: ids.output("rs", place),
                status: ItemStatus::InProgress,
                summary: Vec::new(),
                content: Vec::new(),
                encrypted_content: None,
            })
        });
        self.open = Some(Open::Reasoning(place));
        let part = Part::ReasoningText { text: String::new() };
        if let Item::Reasoning(reasoning) = &mut self.response.output[place] {
            let fields =
                PartFields { item_id: &reasoning.id, output_index: place, content_index: 0, part: &part };
            self.events.put("response.content_part.added", &fields, out);
            reasoning.content.push(part);
        }
        place
    }

    /// The message that is open, or a new one.
    fn message(&mut self, out: &mut BytesMut) -> Place {
        if let Some(Open::Message(place)) = self.open {
            return place;
        }
        let place = self.add(out, |ids, place| {
            Item::Message(MessageItem {
                id: ids.output("msg", place),
                status: ItemStatus::InProgress,
                role: Role::Assistant,
                content: Vec::new(),
                unparsed_tool_text: String::new(),
            })
        });
        self.open = Some(Open::Message(place));
        place
    }

    fn begin_call(&mut self, index: usize, call_id: &str, name: &str, out: &mut BytesMut) {
        let tool = self.tools.called(name);
        let place = self.add(out, |ids, place| {
            let prefix = if tool.kind == ToolKind::Function { "fc" } else { "ctc" };
            Item::Call(CallItem {
                kind: tool.kind,
                id: ids.output(prefix, place),
                status: ItemStatus::InProgress,
                call_id: call_id.to_owned(),
                name: tool.name,
                namespace: tool.namespace,
                given: String::new(),
            })
        });
        self.calls.insert(index, place);
    }

    /// The text of a custom tool is only known once its call is whole.
    fn go_on_calling(&mut self, index: usize, text: &str, out: &mut BytesMut) {
        let Some(place) = self.calls.get(&index).copied() else { return };
        let Item::Call(call) = &mut self.response.output[place] else { return };
        call.given.push_str(text);
        if call.kind == ToolKind::Function {
            let fields = CallFields { item_id: &call.id, output_index: place, text: TextField::Delta(text) };
            self.events.put("response.function_call_arguments.delta", &fields, out);
        }
    }

    fn end_call(&mut self, index: usize, out: &mut BytesMut) {
        let Some(place) = self.calls.remove(&index) else { return };
        let Item::Call(call) = &mut self.response.output[place] else { return };
        if call.kind == ToolKind::Custom {
            call.given = custom_input(&call.given);
        }
        let told: &[(&str, TextField)] = match call.kind {
            ToolKind::Function => {
                &[("response.function_call_arguments.done", TextField::Arguments(&call.given))]
            }
            ToolKind::Custom => &[
                ("response.custom_tool_call_input.delta", TextField::Delta(&call.given)),
                ("response.custom_tool_call_input.done", TextField::Input(&call.given)),
            ],
        };
        for (kind, text) in told {
            let fields = CallFields { item_id: &call.id, output_index: place, text: *text };
            self.events.put(kind, &fields, out);
        }
        self.item_done(place, ItemStatus::Completed, out);
    }

    fn keep_unparsed(&mut self, text: &str, out: &mut BytesMut) {
        let place = self.message(out);
        let Item::Message(message) = &mut self.response.output[place] else { return };
        let fields = CallFields { item_id: &message.id, output_index: place, text: TextField::Delta(text) };
        self.events.put("response.unparsed_tool_text.delta", &fields, out);
        message.unparsed_tool_text.push_str(text);
    }

    /// Adds an item, which ends the one that was open.
    fn add(&mut self, out: &mut BytesMut, item: impl FnOnce(&ItemIds, Place) -> Item) -> Place {
        self.close(ItemStatus::Completed, out);
        let place = self.response.output.len();
        let item = item(&self.ids, place);
        self.events.put("response.output_item.added", &ItemFields { output_index: place, item: &item }, out);
        self.response.output.push(item);
        place
    }

    fn close(&mut self, status: ItemStatus, out: &mut BytesMut) {
        match self.open.take() {
            None => {}
            Some(Open::Message(place)) => self.close_message(place, status, out),
            Some(Open::Reasoning(place)) => self.close_thinking(place, status, out),
        }
    }

    fn close_message(&mut self, place: Place, status: ItemStatus, out: &mut BytesMut) {
        let Item::Message(message) = &self.response.output[place] else { return };
        let item_id = &message.id;
        if let Some(part @ Part::OutputText { text, logprobs, .. }) = message.content.first() {
            let fields = TextFields {
                item_id,
                output_index: place,
                content_index: 0,
                text: TextField::Text(text),
                logprobs: Some(logprobs),
            };
            self.events.put("response.output_text.done", &fields, out);
            let fields = PartFields { item_id, output_index: place, content_index: 0, part };
            self.events.put("response.content_part.done", &fields, out);
        }
        self.item_done(place, status, out);
    }

    fn close_thinking(&mut self, place: Place, status: ItemStatus, out: &mut BytesMut) {
        let Item::Reasoning(reasoning) = &mut self.response.output[place] else { return };
        if self.encrypted == EncryptedContent::Told {
            reasoning.encrypted_content = Some(format!("{PLAIN_CONTENT}{}", reasoning.text()));
        }
        let item_id = &reasoning.id;
        if let Some(part) = reasoning.content.first() {
            let text = TextField::Text(part.text());
            let fields = TextFields { item_id, output_index: place, content_index: 0, text, logprobs: None };
            self.events.put("response.reasoning_text.done", &fields, out);
            let fields = PartFields { item_id, output_index: place, content_index: 0, part };
            self.events.put("response.content_part.done", &fields, out);
        }
        self.item_done(place, status, out);
    }

    fn item_done(&mut self, place: Place, status: ItemStatus, out: &mut BytesMut) {
        let item = &mut self.response.output[place];
        item.set_status(status);
        self.events.put("response.output_item.done", &ItemFields { output_index: place, item }, out);
    }

    fn tell_response(&mut self, kind: &str, out: &mut BytesMut) {
        self.events.put(kind, &ResponseFields { response: &self.response }, out);
    }
}
