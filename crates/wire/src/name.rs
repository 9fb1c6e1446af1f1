//! Names of nodes, by which callers say where values are to be.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::SegmentKind;

/// The name of a node: 1 to [`NodeName::BYTES_MAX`] visible ASCII characters without `,`, `"`, `'` and `\`, and no number,
/// which would be taken for that of a node. It belongs to nobody: where nodes share one, it means any of them.
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
}

/// What follows the name of a node in the name of its SSD.
const SSD: &str = "/ssd";

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

    /// Whether a segment may have this name.
    ///
    /// # Errors
    /// When no node could have given it.
    pub fn check_segment(name: &str, kind: SegmentKind) -> Result<(), NodeNameError> {
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
            "memory-300",
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
                NodeName::check_segment(&name.of_segment(kind), kind),
                Ok(())
            );
            assert!(NodeName::check_segment("7", kind).is_err());
        }
        assert_ne!(
            name.of_segment(SegmentKind::Memory),
            name.of_segment(SegmentKind::Disk)
        );
        assert!(
            NodeName::check_segment(&name.of_segment(SegmentKind::Disk), SegmentKind::Memory)
                .is_err()
        );
    }
}
