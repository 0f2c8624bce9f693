//! OpenAI's Responses API: `/v1/responses`, as an answer at once, as a stream of events, or in the background.
//!
//! A request goes through `fields.rs` (bytes to work, by `input.rs`, `history.rs` and `tools.rs`); the answer's pieces
//! become items and events in `teller.rs`. `store.rs` keeps what is to be fetched or continued, `background.rs` makes
//! what nobody waits for. What an answer is, and when it comes, is decided elsewhere: see `dialect.rs`.

mod background;
mod events;
mod fields;
mod history;
mod input;
mod items;
mod query;
mod response;
mod store;
mod teller;
mod tools;

use self::background::{Background, LogReader, follow};
use self::fields::{Course, Created};
use self::items::Item;
use self::query::Query;
use self::response::Response as ResponseShown;
pub use self::store::Store;
use self::store::{Record, Told};
use self::teller::Teller;
use crate::answers::{Answers, Output, Progress};
use crate::app::App;
use crate::choice::Piece;
use crate::dialect::{AllCounts, EventWriter};
use crate::error::ApiError;
use crate::job::{Delivery, Work, json_response};
use crate::openapi::dialects::{ResponsesPrompt, ResponsesRequest};
use crate::stream::{EventStream, event_response};
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, Uri};
use bytes::BytesMut;
use overshot_chat::Ending;
use serde::Serialize;
use std::future::poll_fn;
use std::sync::Arc;
use utoipa::ToSchema;

type Answer = Result<Response<Body>, ApiError>;

/// `POST /v1/responses`.
#[utoipa::path(
    post,
    path = "/v1/responses",
    tag = "answers",
    request_body = ResponsesRequest,
    responses((status = 200, content((ResponseShown = "application/json"), (String = "text/event-stream")))),
)]
pub async fn create(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    // A short request may continue a long conversation.
    let created = app.understand_apart(request, App::created_response).await?;
    let Created { work, teller, course, input, previous } = created;
    let keeper = Keeper { app: Arc::clone(&app), input, previous };
    match course {
        Course::Background(delivery) => in_background(work, teller, delivery, keeper).await,
        Course::Kept(delivery) => at_once(work, teller, delivery, &app, Some(keeper)).await,
        Course::Passing(delivery) => at_once(work, teller, delivery, &app, None).await,
    }
}

#[derive(Serialize, ToSchema)]
struct InputTokens {
    #[schema(value_type = String)]
    object: &'static str,
    input_tokens: usize,
}

/// `POST /v1/responses/input_tokens`: how long the prompt of such a request is.
#[utoipa::path(
    post,
    path = "/v1/responses/input_tokens",
    tag = "texts",
    request_body = ResponsesPrompt,
    responses((status = 200, body = InputTokens)),
)]
pub async fn input_tokens(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    let input_tokens = app.understand_apart(request, App::response_input_tokens).await?;
    Ok(json_response(&InputTokens { object: "response.input_tokens", input_tokens }))
}

/// `GET /v1/responses/{id}`.
#[utoipa::path(
    get,
    path = "/v1/responses/{id}",
    tag = "answers",
    params(("id" = String, Path)),
    responses((status = 200, content((ResponseShown = "application/json"), (String = "text/event-stream")))),
)]
pub async fn get(State(app): State<Arc<App>>, uri: Uri) -> Answer {
    let record = app.kept_response(&uri)?;
    let query = Query::new(&uri);
    if query.is_true("stream") {
        let reader = LogReader::new(record, query.number("starting_after")?, app.options.keep_alive)?;
        return Ok(event_response(reader));
    }
    Ok(record.with_response(json_response))
}

/// `DELETE /v1/responses/{id}`.
#[utoipa::path(
    delete,
    path = "/v1/responses/{id}",
    tag = "answers",
    params(("id" = String, Path)),
    responses((status = 200, body = Object)),
)]
pub async fn delete(State(app): State<Arc<App>>, uri: Uri) -> Answer {
    #[derive(Serialize)]
    struct Deleted<'a> {
        id: &'a str,
        object: &'static str,
        deleted: bool,
    }
    let record = app.kept_response(&uri)?;
    app.responses.remove(&record.id);
    if let Told::Background(background) = &record.told {
        background.cancel();
    }
    Ok(json_response(&Deleted { id: &record.id, object: "response", deleted: true }))
}

/// `POST /v1/responses/{id}/cancel`.
#[utoipa::path(
    post,
    path = "/v1/responses/{id}/cancel",
    tag = "answers",
    params(("id" = String, Path)),
    responses((status = 200, body = ResponseShown)),
)]
pub async fn cancel(State(app): State<Arc<App>>, uri: Uri) -> Answer {
    let record = app.kept_response(&uri)?;
    let Told::Background(background) = &record.told else {
        let message = "this response was not made in the background: there is nothing to cancel";
        return Err(ApiError::field("id", message));
    };
    background.cancel();
    app.responses.recount(&record.id);
    Ok(record.with_response(json_response))
}

/// `GET /v1/responses/{id}/input_items`.
#[utoipa::path(
    get,
    path = "/v1/responses/{id}/input_items",
    tag = "answers",
    params(("id" = String, Path)),
    responses((status = 200, body = Object)),
)]
pub async fn input_items(State(app): State<Arc<App>>, uri: Uri) -> Answer {
    #[derive(Serialize)]
    struct List<'a> {
        object: &'static str,
        data: Vec<&'a Item>,
        first_id: Option<&'a str>,
        last_id: Option<&'a str>,
        has_more: bool,
    }
    let record = app.kept_response(&uri)?;
    let page = Query::new(&uri).page(&record.input)?;
    let first_id = page.items.first().map(|item| item.id());
    let last_id = page.items.last().map(|item| item.id());
    Ok(json_response(&List { object: "list", first_id, last_id, has_more: page.has_more, data: page.items }))
}

impl App {
    fn kept_response(&self, uri: &Uri) -> Result<Arc<Record>, ApiError> {
        let id = uri.path().split('/').nth(3).unwrap_or_default();
        self.responses.get(id).ok_or_else(|| ApiError::NoSuchResponse { id: id.to_owned() })
    }
}

/// What a response is kept with.
struct Keeper {
    app: Arc<App>,
    input: Vec<Item>,
    previous: Option<String>,
}

impl Keeper {
    fn record(self, id: String, told: Told) -> Arc<Record> {
        Arc::new(Record { id, previous: self.previous, input: self.input, told })
    }

    fn keep(self, teller: Teller) {
        let app = Arc::clone(&self.app);
        let response = Box::new(teller.response);
        // Whoever waited for the response has it, kept or not.
        let _ = app.responses.keep(self.record(response.id.clone(), Told::Whole(response)));
    }
}

async fn at_once(
    work: Work,
    mut teller: Teller,
    delivery: Delivery,
    app: &Arc<App>,
    keeper: Option<Keeper>,
) -> Answer {
    let prompt_tokens = work.prompt_tokens();
    let answers = work.begin(app).await?;
    match delivery {
        Delivery::Stream => {
            let writer = Box::new(Writer { telling: Some((teller, keeper)) });
            Ok(event_response(EventStream::new(answers, writer, prompt_tokens, app.options.keep_alive)))
        }
        Delivery::Whole => {
            tell(answers, prompt_tokens, &mut teller).await?;
            let response = json_response(&teller.response);
            if let Some(keeper) = keeper {
                keeper.keep(teller);
            }
            Ok(response)
        }
    }
}

/// Tells a whole answer. The events are of no use to anybody.
async fn tell(mut answers: Answers, prompt_tokens: usize, teller: &mut Teller) -> Result<(), ApiError> {
    let mut unread = BytesMut::new();
    loop {
        let mut deliver = |_, output: Output| {
            match output {
                Output::Piece(piece) => teller.piece(&piece, &mut unread),
                Output::Finish(ending) => teller.finish(ending.reason, &mut unread),
            }
            unread.clear();
        };
        let progress = poll_fn(|context| answers.poll(context, &mut deliver)).await?;
        if progress == Progress::Over {
            teller.end(AllCounts { prompt: prompt_tokens, answers: answers.counts() }, &mut unread);
            return Ok(());
        }
    }
}

async fn in_background(work: Work, teller: Teller, delivery: Delivery, keeper: Keeper) -> Answer {
    let app = Arc::clone(&keeper.app);
    let prompt_tokens = work.prompt_tokens();
    let id = teller.response.id.clone();
    let background = Box::new(Background::new(teller, delivery, app.limits().background_log_bytes));
    let record = keeper.record(id, Told::Background(background));
    app.responses.keep(Arc::clone(&record))?;
    match work.begin(&app).await {
        Ok(answers) => follow(&record, answers, prompt_tokens, &app),
        Err(error) => {
            app.responses.remove(&record.id);
            return Err(error);
        }
    }
    match delivery {
        Delivery::Stream => Ok(event_response(LogReader::new(record, None, app.options.keep_alive)?)),
        Delivery::Whole => Ok(record.with_response(json_response)),
    }
}

/// Writes a stream, and keeps the response at its end.
struct Writer {
    /// Until the end.
    telling: Option<(Teller, Option<Keeper>)>,
}

impl Writer {
    fn tell(&mut self, tell: impl FnOnce(&mut Teller)) {
        if let Some((teller, _)) = &mut self.telling {
            tell(teller);
        }
    }

    fn over(&mut self) {
        if let Some((teller, Some(keeper))) = self.telling.take() {
            keeper.keep(teller);
        }
    }
}

impl EventWriter for Writer {
    fn announce(&mut self, out: &mut BytesMut) {
        self.tell(|teller| teller.begin(out));
    }

    fn begin(&mut self, _prompt_tokens: usize, _out: &mut BytesMut) {}

    fn piece(&mut self, _choice: usize, piece: &Piece, out: &mut BytesMut) {
        self.tell(|teller| teller.piece(piece, out));
    }

    fn finish(&mut self, _choice: usize, ending: &Ending, out: &mut BytesMut) {
        self.tell(|teller| teller.finish(ending.reason, out));
    }

    fn end(&mut self, counts: AllCounts, out: &mut BytesMut) {
        self.tell(|teller| teller.end(counts, out));
        self.over();
    }

    fn fail(&mut self, error: &ApiError, out: &mut BytesMut) {
        self.tell(|teller| teller.fail(error, out));
        self.over();
    }
}
