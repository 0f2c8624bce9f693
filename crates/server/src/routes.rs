//! Which path does what. Every route says which method it takes, answers others with an envelope, and is counted.

use crate::app::App;
use crate::completions::TextRequest;
use crate::engine_handle::Pulse;
use crate::error::ApiError;
use crate::gate;
use crate::job::json_response;
use crate::messages::{MessageShown, MessageTokens, asks_for_eager_tools, envelope};
use crate::openapi::dialects::{MessagesPrompt, MessagesRequest};
use crate::openapi::openapi;
use crate::openapi::requests::{ChatRequest, DerenderRequest, RenderRequest, TokenizeRequest};
use crate::page::page;
use crate::responses;
use crate::texts::{Derendered, DetokenizeFields, Detokenized, Rendered, Tokenized};
use crate::wire::{ChatResponse, TextResponse};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, Request, Response, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::routing::{MethodRouter, get, post};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

type Answer = Result<Response<Body>, ApiError>;

type Routes = Vec<(&'static str, MethodRouter<Arc<App>>)>;

/// What is there, by its method.
fn table() -> [(Routes, &'static str); 3] {
    let gets = vec![
        ("/", get(page)),
        ("/page/{file}", get(page)),
        ("/v1/models", get(models)),
        ("/v1/models/{*id}", get(model)),
        ("/health", get(health)),
        ("/ready", get(ready)),
        ("/metrics", get(metrics)),
        ("/v1/responses/{id}/input_items", get(responses::input_items)),
        ("/version", get(version)),
        ("/openapi.json", get(openapi)),
    ];
    let posts = vec![
        ("/v1/chat/completions", post(chat)),
        ("/v1/chat/completions/render", post(render)),
        ("/v1/chat/completions/derender", post(derender)),
        ("/v1/completions", post(completions)),
        ("/v1/messages", post(messages)),
        ("/v1/messages/count_tokens", post(count_message_tokens)),
        ("/v1/responses", post(responses::create)),
        ("/v1/responses/input_tokens", post(responses::input_tokens)),
        ("/v1/responses/{id}/cancel", post(responses::cancel)),
        ("/tokenize", post(tokenize)),
        ("/detokenize", post(detokenize)),
    ];
    let both = vec![("/v1/responses/{id}", get(responses::get).delete(responses::delete))];
    [(gets, "GET"), (posts, "POST"), (both, "GET, DELETE")]
}

/// All endpoints.
pub fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for (routes, allowed) in table() {
        for (path, methods) in routes {
            let refuse = move |method: Method, uri: Uri| refuse_method(method, uri, allowed);
            router = router.route(path, counted(&app, path, methods.fallback(refuse)));
        }
    }
    let unknown = counted(&app, "unknown", MethodRouter::new().fallback(no_such_route));
    let router = router.fallback_service(unknown.with_state(Arc::clone(&app)));
    // It tells anew what any layer within has refused, keys and methods too.
    let router = router.layer(from_fn(envelope::tell));
    router.layer(from_fn_with_state(Arc::clone(&app), gate::pass)).with_state(app)
}

#[cfg(test)]
pub fn paths() -> Vec<&'static str> {
    table().into_iter().flat_map(|(routes, _)| routes).map(|(path, _)| path).collect()
}

fn counted(app: &Arc<App>, path: &'static str, methods: MethodRouter<Arc<App>>) -> MethodRouter<Arc<App>> {
    let app = Arc::clone(app);
    let methods = match gate::is_open(path) {
        true => methods,
        false => methods.layer(from_fn_with_state(Arc::clone(&app), gate::check_key)),
    };
    methods.layer(from_fn(move |request: Request<Body>, next: Next| {
        let app = Arc::clone(&app);
        async move {
            let response = next.run(request).await;
            app.engine.metrics().count_response(path, response.status().as_u16());
            response
        }
    }))
}

async fn refuse_method(method: Method, uri: Uri, allowed: &'static str) -> ApiError {
    ApiError::MethodNotAllowed { method: method.to_string(), path: uri.path().to_owned(), allowed }
}

async fn no_such_route(method: Method, uri: Uri) -> ApiError {
    ApiError::NoSuchRoute { method: method.to_string(), path: uri.path().to_owned() }
}

/// An answer to a conversation, whole or as a stream.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = "answers",
    request_body = ChatRequest,
    responses((status = 200, content((ChatResponse = "application/json"), (String = "text/event-stream")))),
)]
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    let job = app.understand(request, App::chat_job).await?;
    job.answer(&app).await
}

/// The continuation of a text, whole or as a stream.
#[utoipa::path(
    post,
    path = "/v1/completions",
    tag = "answers",
    request_body = TextRequest,
    responses((status = 200, content((TextResponse = "application/json"), (String = "text/event-stream")))),
)]
pub(crate) async fn completions(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    let job = app.understand(request, App::text_job).await?;
    job.answer(&app).await
}

/// An answer in the words of Anthropic's API, whole or as a stream: see its documentation for the fields.
#[utoipa::path(
    post,
    path = "/v1/messages",
    tag = "answers",
    request_body = MessagesRequest,
    responses(
        (status = 200, content((MessageShown = "application/json"), (String = "text/event-stream"))),
        (status = "4XX", description = "Anthropic's envelope of errors", body = Object),
        (status = "5XX", description = "Anthropic's envelope of errors", body = Object),
    ),
)]
pub(crate) async fn messages(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    let eager = asks_for_eager_tools(request.headers());
    let job = app.understand(request, move |app, body| app.messages_job(body, eager)).await?;
    job.answer(&app).await
}

/// The prompt tokens that such a request would have.
#[utoipa::path(
    post,
    path = "/v1/messages/count_tokens",
    tag = "texts",
    request_body = MessagesPrompt,
    responses(
        (status = 200, body = MessageTokens),
        (status = "4XX", description = "Anthropic's envelope of errors", body = Object),
        (status = "5XX", description = "Anthropic's envelope of errors", body = Object),
    ),
)]
pub(crate) async fn count_message_tokens(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    app.understand(request, App::count_message_tokens).await
}

/// The prompt that a chat request makes.
#[utoipa::path(
    post,
    path = "/v1/chat/completions/render",
    tag = "texts",
    request_body = RenderRequest,
    responses((status = 200, body = Rendered)),
)]
pub(crate) async fn render(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    app.understand(request, App::render).await
}

/// The message that a model's output makes.
#[utoipa::path(
    post,
    path = "/v1/chat/completions/derender",
    tag = "texts",
    request_body = DerenderRequest,
    responses((status = 200, body = Derendered)),
)]
pub(crate) async fn derender(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    app.understand(request, App::derender).await
}

/// The tokens of a text or of a conversation.
#[utoipa::path(
    post,
    path = "/tokenize",
    tag = "texts",
    request_body = TokenizeRequest,
    responses((status = 200, body = Tokenized)),
)]
pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    app.understand(request, App::tokenize).await
}

/// The text of tokens, markers spelled out.
#[utoipa::path(
    post,
    path = "/detokenize",
    tag = "texts",
    request_body = DetokenizeFields,
    responses((status = 200, body = Detokenized)),
)]
pub(crate) async fn detokenize(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    app.understand(request, App::detokenize).await
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ModelShown<'a> {
    #[schema(value_type = String)]
    id: &'a str,
    #[schema(value_type = String)]
    object: &'static str,
    created: u64,
    #[schema(value_type = String)]
    owned_by: &'static str,
    max_model_len: usize,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ModelList<'a> {
    #[schema(value_type = String)]
    object: &'static str,
    #[schema(value_type = Vec<ModelShown>, min_items = 1, max_items = 1)]
    data: [ModelShown<'a>; 1],
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Version {
    #[schema(value_type = String)]
    version: &'static str,
}

impl App {
    fn model_shown(&self) -> ModelShown<'_> {
        ModelShown {
            id: &self.model.name,
            object: "model",
            created: self.created,
            owned_by: "overshot",
            max_model_len: self.model.context,
        }
    }
}

/// The one model, as a list.
#[utoipa::path(
    get,
    path = "/v1/models",
    tag = "server",
    responses((status = 200, body = ModelList)),
)]
pub(crate) async fn models(State(app): State<Arc<App>>) -> Response<Body> {
    json_response(&ModelList { object: "list", data: [app.model_shown()] })
}

/// Names may have slashes, plain or escaped.
#[utoipa::path(
    get,
    path = "/v1/models/{id}",
    tag = "server",
    params(("id" = String, Path, description = "What clients call the model; slashes are allowed")),
    responses((status = 200, body = ModelShown)),
)]
pub(crate) async fn model(State(app): State<Arc<App>>, uri: Uri) -> Answer {
    let id = uri.path().strip_prefix("/v1/models/").unwrap_or_default();
    app.check_model(Some(&unescaped(id)))?;
    Ok(json_response(&app.model_shown()))
}

/// Undoes percent escapes; what is none stays as it is.
fn unescaped(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escape = path.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match escape.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Status {
    #[schema(value_type = String)]
    status: &'static str,
}

/// Whether the engine moves: 200 however busy it is, 503 when it has stopped or hangs.
#[utoipa::path(
    get,
    path = "/health",
    tag = "server",
    responses((status = 200, body = Status)),
)]
pub(crate) async fn health(State(app): State<Arc<App>>) -> Answer {
    if let Some(error @ ApiError::EngineStopped(_)) = app.engine.refusal() {
        return Err(error);
    }
    match app.engine.pulse(app.options.stall) {
        Pulse::Stalled(since) => Err(ApiError::Stalled { seconds: since.as_secs() }),
        Pulse::Well => Ok(json_response(&Status { status: "ok" })),
    }
}

/// Whether new requests are taken.
#[utoipa::path(
    get,
    path = "/ready",
    tag = "server",
    responses((status = 200, body = Status)),
)]
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Answer {
    match app.engine.refusal() {
        Some(error) => Err(error),
        None => health(State(app)).await.map(|_| json_response(&Status { status: "ready" })),
    }
}

/// The version of this program.
#[utoipa::path(
    get,
    path = "/version",
    tag = "server",
    responses((status = 200, body = Version)),
)]
pub(crate) async fn version() -> Response<Body> {
    json_response(&Version { version: env!("CARGO_PKG_VERSION") })
}

/// Counters, gauges and histograms, in the text format of Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "server",
    responses((status = 200, body = String, content_type = "text/plain")),
)]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response<Body> {
    let mut response = Response::new(Body::from(app.engine.metrics().render()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone_and_nothing_else() {
        assert_eq!(unescaped("a%2Fb/c"), "a/b/c");
        assert_eq!(unescaped("100%"), "100%");
        assert_eq!(unescaped("%zz%e4%b8%ad%"), "%zz中%");
        assert_eq!(unescaped("%é"), "%é");
    }
}
