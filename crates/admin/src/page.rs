//! The page at `/`: files that are part of the binary. They hold no data, so they are served to everybody; what they show
//! comes from paths that are guarded.

use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// A file of the page.
struct Asset {
    path: &'static str,
    kind: &'static str,
    content: &'static str,
}

macro_rules! assets {
    ($($path:literal $kind:ident $file:literal;)*) => {
        &[$(Asset { path: $path, kind: $kind, content: include_str!(concat!("../page/", $file)) }),*]
    };
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

const ASSETS: &[Asset] = assets! {
    "/" HTML "index.html";
    "/page/icon.svg" IMAGE "icon.svg";
    "/page/page.css" STYLE "page.css";
    "/page/main.js" SCRIPT "main.js";
    "/page/stream.js" SCRIPT "stream.js";
    "/page/elements.js" SCRIPT "elements.js";
    "/page/format.js" SCRIPT "format.js";
    "/page/rates.js" SCRIPT "rates.js";
    "/page/flow.js" SCRIPT "flow.js";
    "/page/charts.js" SCRIPT "charts.js";
    "/page/decisions.js" SCRIPT "decisions.js";
    "/page/tables.js" SCRIPT "tables.js";
    "/page/search.js" SCRIPT "search.js";
    "/page/actions.js" SCRIPT "actions.js";
    "/page/uplot/uPlot.esm.js" SCRIPT "uplot/uPlot.esm.js";
    "/page/uplot/uPlot.min.css" STYLE "uplot/uPlot.min.css";
    "/page/uplot/LICENSE" TEXT "uplot/LICENSE";
};

/// Scripts and styles are files of this origin and nothing else is: not even a hole in the page could send data elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    ASSETS.iter().fold(Router::new(), |router, asset| {
        router.route(asset.path, get(move || async move { answer(asset) }))
    })
}

fn answer(asset: &'static Asset) -> Response {
    let mut response = asset.content.into_response();
    let headers = [
        (CONTENT_TYPE, asset.kind),
        // Files of one version belong together.
        (CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("content-security-policy"), POLICY),
        (HeaderName::from_static("x-content-type-options"), "nosniff"),
        (HeaderName::from_static("referrer-policy"), "no-referrer"),
    ];
    for (name, value) in headers {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that asked another origin would tell it who looks at which store, and would not work where there is none.
    #[test]
    fn no_file_of_the_page_asks_another_origin() {
        for asset in ASSETS.iter().filter(|asset| asset.kind != TEXT) {
            let code = asset.content.lines();
            let code = code.filter(|line| !line.trim_start().starts_with(['/', '*']));
            let code: String = code.collect::<Vec<_>>().join("\n");
            let code = code.replace("http://www.w3.org/2000/svg", "");
            for quote in ['"', '\'', '`', '('] {
                for beginning in ["http:", "https:", "//", "data:", "ws:", "wss:"] {
                    let address = format!("{quote}{beginning}");
                    assert!(!code.contains(&address), "{} has {address}", asset.path);
                }
            }
        }
    }

    /// Of inline scripts and styles the policy lets none run: they would only be missing. Names that others chose must not
    /// become elements, and nothing may poll.
    #[test]
    fn nothing_is_made_from_text_and_nothing_polls() {
        assert!(!POLICY.contains("unsafe"));
        let markup = [" style=", "<style", "onclick=", "onload=", "javascript:"];
        let script = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ];
        for asset in ASSETS {
            let ours = !asset.path.starts_with("/page/uplot/");
            for name in markup.iter().filter(|_| asset.kind == HTML).chain(&script) {
                assert!(!asset.content.contains(name), "{} has {name}", asset.path);
            }
            assert!(
                !ours || !asset.content.contains("setInterval"),
                "{}",
                asset.path
            );
        }
        let page = ASSETS.iter().find(|asset| asset.path == "/").unwrap();
        for script in page.content.split("<script").skip(1) {
            assert!(
                script.contains("src=") && script.contains("></script>"),
                "{script}"
            );
        }
    }

    #[test]
    fn every_file_that_a_file_names_is_there() {
        let mut named = 0;
        for asset in ASSETS
            .iter()
            .filter(|asset| asset.kind == SCRIPT || asset.kind == HTML)
        {
            let words = asset.content.split(['"', '\'']);
            let files = words.filter(|word| {
                let ours = word.starts_with("./") || word.starts_with("page/");
                ours && [".js", ".css", ".svg"]
                    .iter()
                    .any(|end| word.ends_with(end))
            });
            for name in files {
                let path = match name.strip_prefix("./") {
                    Some(name) => format!("/page/{name}"),
                    None => format!("/{name}"),
                };
                assert!(
                    ASSETS.iter().any(|asset| asset.path == path),
                    "{} names {name}",
                    asset.path
                );
                named += 1;
            }
        }
        assert!(named > 20, "{named}");
    }
}
