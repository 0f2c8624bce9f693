//! Which path does what. Every route says which method it takes, answers others with an envelope, and is counted.

use crate::app::App;
use crate::engine_handle::Pulse;
use crate::error::ApiError;
use crate::job::json_response;
use crate::messages::{asks_for_eager_tools, envelope};
use crate::page::page;
use crate::responses;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, Request, Response, Uri};
use axum::middleware::{Next, from_fn};
use axum::routing::{MethodRouter, get, post};
use serde::Serialize;
use std::sync::Arc;

type Answer = Result<Response<Body>, ApiError>;

/// All endpoints.
pub fn router(app: Arc<App>) -> Router {
    let gets = [
        ("/", get(page)),
        ("/page/{file}", get(page)),
        ("/v1/models", get(models)),
        ("/v1/models/{*id}", get(model)),
        ("/health", get(health)),
        ("/ready", get(ready)),
        ("/metrics", get(metrics)),
        ("/v1/responses/{id}/input_items", get(responses::input_items)),
    ];
    let posts = [
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
    let both = [("/v1/responses/{id}", get(responses::get).delete(responses::delete))];
    let mut router = Router::new();
    let lists = [(gets.to_vec(), "GET"), (posts.to_vec(), "POST"), (both.to_vec(), "GET, DELETE")];
    for (routes, allowed) in lists {
        for (path, methods) in routes {
            let refuse = move |method: Method, uri: Uri| refuse_method(method, uri, allowed);
            router = router.route(path, counted(&app, path, methods.fallback(refuse)));
        }
    }
    let unknown = counted(&app, "unknown", MethodRouter::new().fallback(no_such_route));
    let router = router.fallback_service(unknown.with_state(Arc::clone(&app))).with_state(app);
    // The outermost layer: it tells anew what any other has refused.
    router.layer(from_fn(envelope::tell))
}

fn counted(app: &Arc<App>, path: &'static str, methods: MethodRouter<Arc<App>>) -> MethodRouter<Arc<App>> {
    let app = Arc::clone(app);
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

async fn chat(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    let job = app.understand(request, App::chat_job).await?;
    job.answer(&app).await
}

async fn completions(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    let job = app.understand(request, App::text_job).await?;
    job.answer(&app).await
}

async fn messages(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    let eager = asks_for_eager_tools(request.headers());
    let job = app.understand(request, move |app, body| app.messages_job(body, eager)).await?;
    job.answer(&app).await
}

async fn count_message_tokens(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    app.understand(request, App::count_message_tokens).await
}

async fn render(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    app.understand(request, App::render).await
}

async fn derender(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    app.understand(request, App::derender).await
}

async fn tokenize(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    app.understand(request, App::tokenize).await
}

async fn detokenize(State(app): State<Arc<App>>, request: Request<Body>) -> Answer {
    app.understand(request, App::detokenize).await
}

#[derive(Serialize)]
struct ModelShown<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    max_model_len: usize,
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

async fn models(State(app): State<Arc<App>>) -> Response<Body> {
    #[derive(Serialize)]
    struct List<'a> {
        object: &'static str,
        data: [ModelShown<'a>; 1],
    }
    json_response(&List { object: "list", data: [app.model_shown()] })
}

/// Names may have slashes, plain or escaped.
async fn model(State(app): State<Arc<App>>, uri: Uri) -> Answer {
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

#[derive(Serialize)]
struct Status {
    status: &'static str,
}

/// Whether the engine moves: 200 however busy it is, 503 when it has stopped or hangs.
async fn health(State(app): State<Arc<App>>) -> Answer {
    if let Some(error @ ApiError::EngineStopped(_)) = app.engine.refusal() {
        return Err(error);
    }
    match app.engine.pulse(app.options.stall) {
        Pulse::Stalled(since) => Err(ApiError::Stalled { seconds: since.as_secs() }),
        Pulse::Well => Ok(json_response(&Status { status: "ok" })),
    }
}

/// Whether new requests are taken.
async fn ready(State(app): State<Arc<App>>) -> Answer {
    match app.engine.refusal() {
        Some(error) => Err(error),
        None => health(State(app)).await.map(|_| json_response(&Status { status: "ready" })),
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Response<Body> {
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
