//! Anthropic's Messages API as a dialect: `POST /v1/messages` and `POST /v1/messages/count_tokens`.
//!
//! A request goes through `fields.rs` (its JSON), `history.rs` and `tools.rs` (to a dialogue, as chat's), and then the way
//! of every other. Its answer becomes content blocks in `blocks.rs`, which are told as a whole in `whole.rs` and as
//! events in `events.rs`. Errors of these paths have Anthropic's envelope, in `envelope.rs`. Nothing here decides how a
//! prompt is rendered or where an answer ends.

mod blocks;
pub mod envelope;
mod events;
mod fields;
mod history;
mod tools;
mod whole;
mod wire;

use crate::answer_format::{AnswerFormat, FieldNames};
use crate::app::{App, fresh_id};
use crate::body;
use crate::choice::ChoiceOptions;
use crate::conversation::{Conversation, Dialogue, OutputReading};
use crate::dialect::{AllCounts, Answer, Dialect, EventWriter};
use crate::error::ApiError;
use crate::fields::{CommonFields, checked_stop_strings};
use crate::job::{Generation, Job, json_response};
use axum::body::Body;
use axum::http::Response;
use events::MessageEvents;
use fields::MessagesFields;
use tools::DeclaredTools;
pub use tools::{EagerTools, asks_for_eager_tools};
pub use wire::{MessageShown, MessageTokens};

/// One answer in Anthropic's words.
struct Messages {
    id: String,
    prompt_tokens: usize,
    /// What a limit that cuts the answer is called.
    limit: &'static str,
    eager: EagerTools,
}

impl App {
    /// # Errors
    /// A field that is wrong or not supported, a prompt that is too long.
    pub fn messages_job(&self, body: &[u8], eager: EagerTools) -> Result<Job, ApiError> {
        let mut common: CommonFields = body::parse(body)?;
        let mut fields: MessagesFields = body::parse(body)?;
        let generation = self.messages_generation(&mut common, &mut fields)?;
        let eager = eager.of(fields.tools.as_deref().unwrap_or_default());
        let conversation = self.messages_conversation(&common, fields)?;
        let prompt_tokens = conversation.ids.len();
        let fits = generation.most_new_tokens(prompt_tokens, self.model.context)?;
        // An answer that the context cuts can be had in no longer request.
        let is_all_asked = generation.most_new_tokens == Some(fits);
        let limit = if is_all_asked { "max_tokens" } else { "model_context_window_exceeded" };
        let dialect = Messages { id: fresh_id("msg_"), prompt_tokens, limit, eager };
        self.job(&conversation, &generation, dialect, common.delivery())
    }

    /// # Errors
    /// A field that is wrong or not supported.
    pub fn count_message_tokens(&self, body: &[u8]) -> Result<Response<Body>, ApiError> {
        let conversation = self.messages_conversation(&body::parse(body)?, body::parse(body)?)?;
        Ok(json_response(&MessageTokens { input_tokens: conversation.ids.len() }))
    }

    /// The prompt, the same whether it is answered or counted.
    fn messages_conversation(
        &self,
        common: &CommonFields,
        mut fields: MessagesFields,
    ) -> Result<Conversation, ApiError> {
        self.check_model(common.model.as_deref())?;
        fields.refuse_unsupported()?;
        let effort = fields.effort(self.model.effort)?;
        let (calls, count) = tools::choice(fields.tool_choice.as_ref())?;
        let (field, form) = fields.form()?;
        let declared = tools::declared(fields.tools.unwrap_or_default())?;
        let turns = fields.messages.ok_or_else(|| ApiError::field("messages", "messages is missing"))?;
        let messages = history::messages(fields.system, turns, &declared)?;
        let DeclaredTools { tools, mut places, deferred } = declared;
        let (deferred_places, unlisted): (Vec<_>, Vec<_>) = deferred.into_values().unzip();
        places.extend(deferred_places);
        let reading = OutputReading { effort, tools, tool_choice: calls.reading() };
        let fields = FieldNames { form: field.into(), tools: places, schema: "input_schema" };
        let format = AnswerFormat { form, calls, count, unlisted, fields };
        self.conversation(Dialogue { messages, reading, format })
    }

    fn messages_generation(
        &self,
        common: &mut CommonFields,
        fields: &mut MessagesFields,
    ) -> Result<Generation, ApiError> {
        let most_new_tokens = match fields.max_tokens {
            None => {
                return Err(ApiError::field("max_tokens", "max_tokens is missing: say how long it may get"));
            }
            Some(0) => return Err(ApiError::field("max_tokens", "max_tokens is 0: ask for at least 1")),
            tokens => tokens,
        };
        let stops = fields.stop_sequences.take().unwrap_or_default();
        let stop_strings = checked_stop_strings("stop_sequences", stops, self.limits())?;
        let generation = common.generation(self, 1, None)?;
        let options = ChoiceOptions { stop_strings, ..generation.options };
        Ok(Generation { choices: 1, options, most_new_tokens, ..generation })
    }
}

impl Dialect for Messages {
    fn whole(self: Box<Self>, answers: Vec<Answer>, counts: AllCounts, app: &App) -> Response<Body> {
        whole::response(&self, answers.into_iter().next().unwrap_or_default(), counts, app)
    }

    fn events(self: Box<Self>, _choices: usize, app: &App) -> Box<dyn EventWriter> {
        Box::new(MessageEvents::new(*self, app))
    }
}
