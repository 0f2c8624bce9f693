//! The web page at `/`: a few files, built into the binary. Browsers are told to load nothing from anywhere else and to
//! ask again each time, which costs an empty answer as long as nothing has changed.

use crate::error::ApiError;
use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri};

struct Asset {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! asset {
    ($path:literal, $file:literal, $content_type:expr) => {
        Asset { path: $path, content_type: $content_type, bytes: include_bytes!(concat!("page/", $file)) }
    };
}

static ASSETS: [Asset; 10] = [
    asset!("/", "index.html", HTML),
    asset!("/page/page.css", "page.css", CSS),
    asset!("/page/icon.svg", "icon.svg", SVG),
    asset!("/page/page.js", "page.js", SCRIPT),
    asset!("/page/api.js", "api.js", SCRIPT),
    asset!("/page/conversation.js", "conversation.js", SCRIPT),
    asset!("/page/load.js", "load.js", SCRIPT),
    asset!("/page/markdown.js", "markdown.js", SCRIPT),
    asset!("/page/settings.js", "settings.js", SCRIPT),
    asset!("/page/turns.js", "turns.js", SCRIPT),
];

/// No script, style or request but this server's, no frame around the page, no form that leads away.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 4] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-cache"),
];

/// `GET /` and `GET /page/{file}`.
pub async fn page(method: Method, uri: Uri, headers: HeaderMap) -> Result<Response<Body>, ApiError> {
    let asset = ASSETS
        .iter()
        .find(|asset| asset.path == uri.path())
        .ok_or_else(|| ApiError::NoSuchRoute { method: method.to_string(), path: uri.path().to_owned() })?;
    let tag = format!("\"{:016x}\"", fingerprint(asset.bytes));
    let is_known = headers.get_all(IF_NONE_MATCH).iter().any(|known| names(known, &tag));
    let mut response = if is_known {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let mut response = Response::new(Body::from(asset.bytes));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
        response
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

/// Whether a list of tags, weak ones included, has this one.
fn names(list: &HeaderValue, tag: &str) -> bool {
    let tags = list.to_str().unwrap_or_default().split(',').map(str::trim);
    tags.map(|known| known.strip_prefix("W/").unwrap_or(known)).any(|known| known == tag || known == "*")
}

/// FNV-1a: it tells versions of a file apart, and is no secret.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(asset: &Asset) -> &'static str {
        std::str::from_utf8(asset.bytes).unwrap()
    }

    #[test]
    fn every_file_of_the_folder_is_served_under_its_name() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/page");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| format!("/page/{}", entry.unwrap().file_name().into_string().unwrap()))
            .map(|path| if path == "/page/index.html" { "/".into() } else { path })
            .collect();
        files.sort();
        let mut served: Vec<&str> = ASSETS.iter().map(|asset| asset.path).collect();
        served.sort();
        assert_eq!(served, files);
    }

    #[test]
    fn files_name_only_files_that_are_served() {
        for asset in &ASSETS {
            for quoted in text(asset)
                .split('"')
                .filter(|quoted| quoted.starts_with("./") || quoted.starts_with("page/"))
            {
                let path = format!("/page/{}", quoted.trim_start_matches("./").trim_start_matches("page/"));
                assert!(ASSETS.iter().any(|known| known.path == path), "{}: {quoted}", asset.path);
            }
        }
    }

    /// Nothing is fetched from elsewhere, and no text becomes markup.
    #[test]
    fn files_name_no_other_host_and_write_no_markup() {
        for asset in &ASSETS {
            let own = text(asset).replace("http://www.w3.org/2000/svg", "");
            for unwanted in
                ["http://", "https://", "src=\"//", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval("]
            {
                assert!(!own.contains(unwanted), "{}: {unwanted}", asset.path);
            }
        }
    }

    #[test]
    fn tags_are_found_in_lists() {
        for (list, is_named) in
            [("\"a\"", true), ("W/\"a\"", true), ("\"b\", \"a\"", true), ("*", true), ("\"ab\"", false)]
        {
            assert_eq!(names(&HeaderValue::from_static(list), "\"a\""), is_named, "{list}");
        }
    }
}
