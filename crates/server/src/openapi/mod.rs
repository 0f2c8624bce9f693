//! `/openapi.json`: what this server takes and gives, generated from the types that read and write it.
//!
//! To add a route: put `#[utoipa::path(..)]` on its handler with method, path, `tag`, parameters, `request_body` and the
//! 200 response, make the handler visible in the crate, and name it in `paths(..)` below. Its types derive
//! `utoipa::ToSchema`, bounds stand in `#[schema(minimum = .., max_items = ..)]` beside the field, and a body that is
//! read in several passes has one struct in `requests.rs` that flattens them. Errors and keys are added here for every
//! route that does not tell its own (a `"4XX"` response). A test holds the list against the router's.
//!
//! What the types cannot say stays out: events of streams are described in the documentation, not here.

pub mod dialects;
pub mod requests;

use crate::app::App;
use crate::gate;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response};
use std::sync::{Arc, LazyLock};
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Overshot",
        description = "DeepSeek-V4 over HTTP. Unknown fields are ignored; null is as good as absent."
    ),
    paths(
        crate::routes::chat,
        crate::routes::render,
        crate::routes::derender,
        crate::routes::completions,
        crate::routes::messages,
        crate::routes::count_message_tokens,
        crate::responses::create,
        crate::responses::input_tokens,
        crate::responses::get,
        crate::responses::delete,
        crate::responses::cancel,
        crate::responses::input_items,
        crate::routes::tokenize,
        crate::routes::detokenize,
        crate::routes::models,
        crate::routes::model,
        crate::routes::health,
        crate::routes::ready,
        crate::routes::metrics,
        crate::routes::version,
        openapi,
    ),
    components(schemas(ErrorEnvelope))
)]
struct Document;

/// The envelope of every error.
#[derive(ToSchema)]
#[expect(dead_code, reason = "written by hand in error.rs")]
struct ErrorEnvelope {
    error: ErrorTold,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "written by hand in error.rs")]
struct ErrorTold {
    /// One sentence: what is wrong, and what to do.
    message: String,
    r#type: String,
    /// The field that is wrong, by its path.
    #[schema(required)]
    param: Option<String>,
    #[schema(required)]
    code: Option<String>,
}

/// The description of all endpoints.
#[utoipa::path(get, path = "/openapi.json", tag = "server", responses((status = 200, body = Object)))]
pub async fn openapi(State(_): State<Arc<App>>) -> Response<Body> {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        serde_json::to_string(&document()).expect("a document of strings and numbers serialises")
    });
    let mut response = Response::new(Body::from(TEXT.as_str()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn document() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    for (path, item) in &mut document.paths.paths {
        let operations = [&mut item.get, &mut item.post, &mut item.delete];
        operations.into_iter().flatten().for_each(|operation| complete(path, operation));
    }
    let components = document.components.get_or_insert_default();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    let header = ApiKey::Header(ApiKeyValue::new("x-api-key"));
    components.add_security_scheme("header", SecurityScheme::ApiKey(header));
    document
}

/// Adds what holds for every route.
fn complete(path: &str, operation: &mut Operation) {
    for status in ["4XX", "5XX"] {
        let envelope = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorEnvelope"))).build();
        let refusal = ResponseBuilder::new()
            .description("Why there is no answer")
            .content("application/json", envelope)
            .build();
        operation.responses.responses.entry(status.to_owned()).or_insert(RefOr::T(refusal));
    }
    if !gate::is_open(path) {
        // Either of them, or none where the server has no keys.
        let none = SecurityRequirement::default();
        let [bearer, header] =
            ["bearer", "header"].map(|name| SecurityRequirement::new(name, [] as [&str; 0]));
        operation.security = Some(vec![none, bearer, header]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ServerLimits;
    use crate::routes;

    /// Pages for people, not for programs.
    const UNDESCRIBED: [&str; 2] = ["/", "/page/"];

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let document = document();
        let described: Vec<&str> = document.paths.paths.keys().map(String::as_str).collect();
        let routed: Vec<String> = routes::paths().iter().map(|path| path.replace("{*", "{")).collect();
        for path in &routed {
            let is_page = UNDESCRIBED[0] == path || path.starts_with(UNDESCRIBED[1]);
            assert!(is_page || described.contains(&path.as_str()), "{path} is not in the document");
        }
        for path in described {
            assert!(routed.iter().any(|routed| routed == path), "{path} is no route");
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        let text = serde_json::to_string(&document()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let schemas = value["components"]["schemas"].as_object().unwrap();
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
    }

    #[test]
    fn bounds_that_are_told_are_those_that_hold() {
        let value = serde_json::to_value(document()).unwrap();
        let told = |schema: &str, field: &str, bound: &str| {
            value["components"]["schemas"][schema]["properties"][field][bound]
                .as_u64()
                .map(|bound| bound as usize)
        };
        let limits = ServerLimits::default();
        assert_eq!(told("CommonFields", "n", "maximum"), Some(limits.choices));
        assert_eq!(told("CommonFields", "stop_token_ids", "maxItems"), Some(limits.stop_tokens - 1));
        assert_eq!(told("TextFields", "logprobs", "maximum"), Some(limits.top_logprobs));
    }
}
