//! The web page as a browser gets it: types, the policy that keeps it to this server, and answers that say "unchanged".

#![allow(clippy::unwrap_used)]

mod common;

use axum::body::Body;
use axum::http::Request;
use common::Server;
use overshot_server::router;
use tower::ServiceExt;

#[tokio::test]
async fn files_come_with_their_type_and_a_strict_policy() {
    let server = Server::new();
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/page/page.css", "text/css; charset=utf-8"),
        ("/page/page.js", "text/javascript; charset=utf-8"),
        ("/page/icon.svg", "image/svg+xml"),
    ] {
        let reply = server.get(path).await;
        assert_eq!(reply.status, 200, "{path}");
        assert_eq!(reply.headers["content-type"], kind);
        assert_eq!(reply.headers["x-content-type-options"], "nosniff");
        let policy = reply.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert!(!reply.body.is_empty());
    }
}

#[tokio::test]
async fn what_a_browser_has_already_is_not_sent_again() {
    let server = Server::new();
    let tag = server.get("/").await.headers["etag"].clone();
    let ask = async |known: &str| {
        let request = Request::get("/").header("if-none-match", known).body(Body::empty()).unwrap();
        router(server.app.clone()).oneshot(request).await.unwrap()
    };
    let unchanged = ask(tag.to_str().unwrap()).await;
    assert_eq!((unchanged.status().as_u16(), &unchanged.headers()["etag"]), (304, &tag));
    assert_eq!(ask("\"0123456789abcdef\"").await.status(), 200);
}

#[tokio::test]
async fn other_paths_and_methods_are_refused_with_an_envelope() {
    let server = Server::new();
    for path in ["/page/", "/page/none.js", "/page/../page.js", "/page/index.html"] {
        let reply = server.get(path).await;
        assert_eq!(
            (reply.status, reply.json()["error"]["code"].as_str()),
            (404, Some("unknown_url")),
            "{path}"
        );
    }
    let reply = server.send("POST", "/", None, Body::empty()).await;
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (405, Some("method_not_allowed")));
}
