use std::path::PathBuf;
use std::time::Duration;

use slackwater_base::{ByteSize, format_duration, parse_duration};

/// A type that an option can have: it reads from one line of text and prints as one that reads back.
pub trait Value: Clone + PartialEq {
    /// What a reader of the documentation sees: `size`, `duration`, `one of …`.
    const KIND: &'static str;

    /// Reads the value.
    ///
    /// # Errors
    /// Says what is wrong with the text and what would be right.
    fn parse(text: &str) -> Result<Self, String>;

    /// Prints the value.
    fn show(&self) -> String;
}

impl Value for ByteSize {
    const KIND: &'static str = "size";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: slackwater_base::ParseUnitError| error.to_string())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Duration {
    const KIND: &'static str = "duration";

    fn parse(text: &str) -> Result<Self, String> {
        parse_duration(text).map_err(|error| error.to_string())
    }

    fn show(&self) -> String {
        format_duration(*self)
    }
}

impl Value for bool {
    const KIND: &'static str = "true or false";

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" => Ok(false),
            _ => Err(format!("`{text}` is neither true nor false")),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for u32 {
    const KIND: &'static str = "number";

    fn parse(text: &str) -> Result<Self, String> {
        let digits: String = text.trim().chars().filter(|c| *c != '_').collect();
        digits.parse().map_err(|_| format!("`{text}` is not a whole number from 0 to {}", u32::MAX))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    const KIND: &'static str = "text";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

/// A path, or nothing when the text is empty.
impl Value for Option<PathBuf> {
    const KIND: &'static str = "path";

    fn parse(text: &str) -> Result<Self, String> {
        Ok((!text.is_empty()).then(|| PathBuf::from(text)))
    }

    fn show(&self) -> String {
        self.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
    }
}

/// A part of a whole, written `0.9` or `90%`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Ratio(pub f64);

impl Value for Ratio {
    const KIND: &'static str = "ratio from 0 to 1";

    fn parse(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let (number, scale) = match trimmed.strip_suffix('%') {
            Some(percent) => (percent.trim_end(), 100.0),
            None => (trimmed, 1.0),
        };
        let value: f64 = number.parse().map_err(|_| format!("`{text}` is not a ratio (write it as 0.9 or 90%)"))?;
        let ratio = value / scale;
        if (0.0..=1.0).contains(&ratio) { Ok(Self(ratio)) } else { Err(format!("`{text}` is not between 0 and 1")) }
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// Declares an option's type that is one of a few words.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident: $kind:literal { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Every choice there is.
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            /// The word it is chosen by.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)*
                }
            }
        }

        impl $crate::config::Value for $name {
            const KIND: &'static str = $kind;

            fn parse(text: &str) -> Result<Self, String> {
                $crate::config::value::choose(text, Self::ALL, Self::word)
            }

            fn show(&self) -> String {
                self.word().to_owned()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                <Self as $crate::config::Value>::parse(text)
            }
        }
    };
}
pub(super) use choice;

/// The choice whose word is `text`; hyphen and underscore are the same, as is case.
pub(super) fn choose<T: Copy>(text: &str, all: &[T], word: impl Fn(T) -> &'static str) -> Result<T, String> {
    let wanted = text.trim().to_ascii_lowercase().replace('_', "-");
    if let Some(found) = all.iter().find(|choice| word(**choice) == wanted) {
        return Ok(*found);
    }
    let words: Vec<&str> = all.iter().map(|choice| word(*choice)).collect();
    let hint = super::suggest::nearest(&wanted, words.iter().copied());
    let hint = hint.map(|near| format!(", did you mean `{near}`?")).unwrap_or_default();
    Err(format!("`{text}` is none of {}{hint}", words.join(", ")))
}
