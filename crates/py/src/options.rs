use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};
use slackwater_base::ByteSize;
use slackwater_node::Config;
use slackwater_wire::{Expectation, Key, Pin, Tenant};

use crate::buffers::KeyBytes;
use crate::errors::misconfigured;

/// The chain of the keys of one call: they are the blocks of a chain, in order.
///
/// A call that passes a whole chain from its root needs none of this. A call that passes a piece names the key of the
/// block before the piece and the position of its first block, counted from `POSITION_UNKNOWN` where the beginning of the
/// chain is not known: such blocks are not taken for roots. `expect` is `"continues"` where another request is expected
/// to continue the chain within ten minutes, and `"ends"` where none is; `hint` is an opaque small number that
/// distinguishes requests that will return from others, and `output_tokens` what the request generated.
#[pyclass(frozen, module = "slackwater")]
#[derive(Clone, Default)]
pub(crate) struct Chain {
    pub(crate) inner: slackwater_wire::Chain,
}

#[pymethods]
impl Chain {
    #[classattr]
    const POSITION_UNKNOWN: u32 = slackwater_wire::Chain::POSITION_UNKNOWN;

    #[new]
    #[pyo3(signature = (*, parent=None, position=0, expect=None, hint=None, output_tokens=None))]
    fn new(
        parent: Option<KeyBytes>,
        position: u32,
        expect: Option<&str>,
        hint: Option<u32>,
        output_tokens: Option<u32>,
    ) -> PyResult<Self> {
        let parent = parent.map(|key| Key::new(key.as_slice())).transpose();
        let parent = parent.map_err(|error| PyValueError::new_err(format!("parent: {error}")))?;
        let expect = expect.map(expectation).transpose()?;
        Ok(Self {
            inner: slackwater_wire::Chain {
                parent,
                position,
                hint,
                expect,
                output_tokens,
            },
        })
    }

    fn __repr__(&self) -> String {
        let slackwater_wire::Chain {
            parent,
            position,
            hint,
            expect,
            output_tokens,
        } = &self.inner;
        let number =
            |value: &Option<u32>| value.map_or("None".to_owned(), |value| value.to_string());
        let parent = parent
            .as_ref()
            .map_or("None".to_owned(), |key| format!("{key:?}"));
        let (hint, output_tokens) = (number(hint), number(output_tokens));
        let expect = match expect {
            None => "None",
            Some(Expectation::Continues) => "'continues'",
            Some(Expectation::Ends) => "'ends'",
        };
        format!(
            "Chain(parent={parent}, position={position}, expect={expect}, hint={hint}, output_tokens={output_tokens})"
        )
    }
}

fn expectation(text: &str) -> PyResult<Expectation> {
    match text {
        "continues" => Ok(Expectation::Continues),
        "ends" => Ok(Expectation::Ends),
        other => Err(PyValueError::new_err(format!(
            "expect: `{other}` is neither \"continues\" nor \"ends\""
        ))),
    }
}

/// The chain that was given, or one that begins at its root.
pub(crate) fn chain(given: Option<&Bound<'_, Chain>>) -> slackwater_wire::Chain {
    given
        .map(|chain| chain.get().inner.clone())
        .unwrap_or_default()
}

/// The tenant of that name; none means the default tenant.
pub(crate) fn tenant(name: Option<&str>) -> PyResult<Tenant> {
    Tenant::new(name.unwrap_or_default()).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// `None`, `"soft"`, `"hard"`, or the seconds of a soft pin.
pub(crate) fn pin(given: Option<&Bound<'_, PyAny>>) -> PyResult<Pin> {
    let Some(given) = given else {
        return Ok(Pin::None);
    };
    if let Ok(seconds) = given.extract::<f64>() {
        return Ok(Pin::Soft(Some(seconds_of("pin", seconds)?)));
    }
    match given.extract::<String>().as_deref() {
        Ok("soft") => Ok(Pin::Soft(None)),
        Ok("hard") => Ok(Pin::Hard),
        Ok(other) => Err(PyValueError::new_err(format!(
            "pin: `{other}` is neither \"soft\" nor \"hard\""
        ))),
        Err(_) => Err(PyTypeError::new_err(
            "pin: expected \"soft\", \"hard\" or the seconds of a soft pin",
        )),
    }
}

/// A time in seconds that is not negative.
pub(crate) fn seconds_of(name: &str, seconds: f64) -> PyResult<Duration> {
    let wrong = |_| PyValueError::new_err(format!("{name}: {seconds} is no time in seconds"));
    Duration::try_from_secs_f64(seconds).map_err(wrong)
}

/// The configuration from all layers; keyword arguments are the flags' layer, named as options are in a file with
/// underscores for dots.
pub(crate) fn configuration(
    py: Python<'_>,
    file: Option<std::path::PathBuf>,
    named: Vec<(String, String)>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Config> {
    let mut flags = named;
    for (name, value) in options.into_iter().flatten() {
        let name: String = name.extract()?;
        if !Config::OPTIONS
            .iter()
            .any(|option| option.key.replace('.', "_") == name)
        {
            return Err(PyTypeError::new_err(unknown(&name)));
        }
        flags.push((name.replace('_', "-"), option_text(&name, &value)?));
    }
    Config::load(file.as_deref(), std::env::vars_os(), &flags)
        .map_err(|problems| misconfigured(py, &problems))
}

/// Names the wrong keyword, then the known ones.
fn unknown(name: &str) -> String {
    let names: Vec<String> = Config::OPTIONS
        .iter()
        .map(|option| option.key.replace('.', "_"))
        .collect();
    format!(
        "Store() got an unexpected keyword argument '{name}' (options: {})",
        names.join(", ")
    )
}

fn option_text(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    let plain = value.is_instance_of::<PyString>()
        || value.is_instance_of::<PyInt>()
        || value.is_instance_of::<PyFloat>();
    if value.is_instance_of::<PyBool>() {
        Ok(value.extract::<bool>()?.to_string())
    } else if plain {
        Ok(value.str()?.to_string())
    } else {
        let found = value.get_type().name()?;
        Err(PyTypeError::new_err(format!(
            "{name}: expected a text, a number or a truth, found {found}"
        )))
    }
}

/// Bytes as a number, or a text such as `64MiB`.
pub(crate) fn size_text(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    if value.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!(
            "{name}: expected bytes or a text such as \"1GiB\", found bool"
        )));
    }
    if let Ok(bytes) = value.extract::<u64>() {
        return Ok(bytes.to_string());
    }
    let wrong =
        || PyTypeError::new_err(format!("{name}: expected bytes or a text such as \"1GiB\""));
    value.extract::<String>().map_err(|_| wrong())
}

/// The same as a number of bytes.
pub(crate) fn bytes_of(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let size: Result<ByteSize, _> = size_text(name, value)?.parse();
    size.map(|size| size.0)
        .map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
}
