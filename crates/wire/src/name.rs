//! Names of nodes, by which callers say where values are to be.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::{NodeId, SegmentKind};

/// The name of a node: 1 to [`NodeName::BYTES_MAX`] visible ASCII characters without `,`, `"`, `'` and `\`, no number, which
/// would be taken for that of a node, and none that the segments of other nodes may have. It belongs to nobody: where nodes share one, it means any of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeName(Box<str>);

/// Why a text is the name of no node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeNameError {
    /// No text at all.
    #[error("the name of a node must not be empty")]
    Empty,
    /// A name over the limit.
    #[error("a node name of {bytes} bytes is over the limit of {limit}")]
    TooLong {
        /// Length of the refused name.
        bytes: usize,
        /// Longest name there may be.
        limit: usize,
    },
    /// A character that separates or quotes names, or is not seen.
    #[error(
        "a node name has no {character:?}: it has visible ASCII characters other than , \" ' and \\"
    )]
    Character {
        /// The first such character.
        character: char,
    },
    /// What names the node of that number.
    #[error("`{0}` names the node of that number: give the name another character")]
    Number(String),
    /// What the segments of nodes without a name, or SSDs, are called.
    #[error(
        "`{0}` would be taken for a segment of another node: a node name is not memory-NUMBER or ssd-NUMBER, and does not end in \
         /ssd"
    )]
    OfSegment(String),
}

/// What follows the name of a node in the name of its SSD.
const SSD: &str = "/ssd";
/// What the number of a node follows in the names of its memory and its SSD, if it has no name.
const UNNAMED: (&str, &str) = ("memory-", "ssd-");

impl NodeName {
    /// Longest name of a node, in bytes: a host, as name servers take it, and a port.
    pub const BYTES_MAX: usize = 260;

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of a segment of the node: its own for memory, and one that tells it apart for the SSD.
    #[must_use]
    pub fn of_segment(&self, kind: SegmentKind) -> String {
        match kind {
            SegmentKind::Memory => self.0.to_string(),
            SegmentKind::Disk => format!("{}{SSD}", self.0),
        }
    }

    /// The name of a segment of a node that has none.
    #[must_use]
    pub fn of_unnamed(node: NodeId, kind: SegmentKind) -> String {
        let (memory, disk) = UNNAMED;
        match kind {
            SegmentKind::Memory => format!("{memory}{node}"),
            SegmentKind::Disk => format!("{disk}{node}"),
        }
    }

    /// Whether a segment of a node may have this name.
    ///
    /// # Errors
    /// When the node could not have given it.
    pub fn check_segment(name: &str, node: NodeId, kind: SegmentKind) -> Result<(), NodeNameError> {
        if name == Self::of_unnamed(node, kind) {
            return Ok(());
        }
        let own = match kind {
            SegmentKind::Memory => name,
            SegmentKind::Disk => name.strip_suffix(SSD).unwrap_or(name),
        };
        own.parse().map(|_: Self| ())
    }
}

impl FromStr for NodeName {
    type Err = NodeNameError;

    fn from_str(text: &str) -> Result<Self, NodeNameError> {
        let separates = |one: &char| !one.is_ascii_graphic() || ",\"'\\".contains(*one);
        if text.is_empty() {
            return Err(NodeNameError::Empty);
        }
        if text.len() > Self::BYTES_MAX {
            return Err(NodeNameError::TooLong {
                bytes: text.len(),
                limit: Self::BYTES_MAX,
            });
        }
        if let Some(character) = text.chars().find(separates) {
            return Err(NodeNameError::Character { character });
        }
        // As places are read where jobs name them.
        if text.parse::<u32>().is_ok() {
            return Err(NodeNameError::Number(text.to_owned()));
        }
        let (memory, disk) = UNNAMED;
        let number = text
            .strip_prefix(memory)
            .or_else(|| text.strip_prefix(disk));
        if text.ends_with(SSD) || number.is_some_and(|it| it.parse::<u32>().is_ok()) {
            return Err(NodeNameError::OfSegment(text.to_owned()));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_visible_and_no_numbers() {
        let long = "a".repeat(260);
        for name in [
            "a",
            "host-1.example:12300",
            "[fe80::1%eth0]:7",
            "memory-",
            "memory-300b",
            "ssd-4294967296",
            "a/ssd/b",
            "4294967296",
            "-1",
            &long,
        ] {
            assert_eq!(
                name.parse::<NodeName>().map(|name| name.to_string()),
                Ok(name.to_owned())
            );
        }
        let over = "a".repeat(261);
        let check = |name: &str, reason: &str| {
            let error = name.parse::<NodeName>().unwrap_err();
            assert!(error.to_string().contains(reason), "{name:?}: {error}");
        };
        check("", "must not be empty");
        check(&over, "261 bytes is over the limit of 260");
        check("300", "`300` names the node of that number");
        check("+7", "`+7` names the node of that number");
        for name in ["memory-300", "ssd-0", "a/ssd", "/ssd"] {
            check(
                name,
                &format!("`{name}` would be taken for a segment of another node"),
            );
        }
        for (name, character) in [
            ("a b", ' '),
            ("a,b", ','),
            ("\"", '"'),
            ("it's", '\''),
            ("a\\b", '\\'),
            ("a\n", '\n'),
            ("ä", 'ä'),
        ] {
            check(name, &format!("{character:?}"));
        }
    }

    #[test]
    fn the_names_of_segments_are_those_of_their_node() {
        let name: NodeName = "a".repeat(260).parse().unwrap();
        for kind in [SegmentKind::Memory, SegmentKind::Disk] {
            assert_eq!(
                NodeName::check_segment(&name.of_segment(kind), NodeId(300), kind),
                Ok(())
            );
            assert!(NodeName::check_segment("7", NodeId(300), kind).is_err());
            // A node that called its memory as that of another got its values, and was drained in its place.
            let unnamed = NodeName::of_unnamed(NodeId(300), kind);
            assert!(NodeName::check_segment(&unnamed, NodeId(300), kind).is_ok());
            assert!(NodeName::check_segment(&unnamed, NodeId(301), kind).is_err());
        }
        assert_ne!(
            name.of_segment(SegmentKind::Memory),
            name.of_segment(SegmentKind::Disk)
        );
        assert!(
            NodeName::check_segment(
                &name.of_segment(SegmentKind::Disk),
                NodeId(300),
                SegmentKind::Memory
            )
            .is_err()
        );
    }
}
