//! What is of others and stands among our sources, so that no registry names it.

/// A part of the binary that others wrote.
pub(super) struct Vendored {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) licence: &'static str,
    /// The text of its licence.
    pub(super) text: &'static str,
    /// Its name where it was published, as a package URL.
    pub(super) purl: &'static str,
}

pub(super) const VENDORED: &[Vendored] = &[Vendored {
    name: "uPlot",
    version: "1.6.32",
    licence: "MIT",
    text: include_str!("../../../crates/admin/page/uplot/LICENSE"),
    purl: "pkg:npm/uplot@1.6.32",
}];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_file() {
        let code = include_str!("../../../crates/admin/page/uplot/uPlot.esm.js");
        let [uplot] = VENDORED else {
            panic!("compare the others with their files too");
        };
        assert!(code.contains(&format!("{} (v{})", uplot.name, uplot.version)));
        assert!(uplot.purl.ends_with(uplot.version));
        assert!(uplot.text.contains("MIT") && uplot.text.contains("Permission is hereby granted"));
    }
}
