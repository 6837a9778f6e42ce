//! Which devices may be used, by their names.

use std::fmt;
use std::str::FromStr;

use mori_core::{Error, ErrorKind};

/// Which devices and ports may be used, by name. The default lets all of them pass.
///
/// Written as a list with commas between its parts, as users of `MORI_RDMA_DEVICES` and of NCCL know it:
///
/// | written | means |
/// |---|---|
/// | `mlx5_0,mlx5_3` | only these two |
/// | `^mlx5_0,mlx5_3` | all but these two: a `^` at the front turns the whole list around |
/// | `mlx5_*,^mlx5_3` | what starts with `mlx5_`, but not that one: a `^` further back is for its own part |
/// | `mlx5_0:2` | port 2 of that device |
/// | `=mlx5_1` | the same as `mlx5_1`: a name means the device of exactly that name |
///
/// ```
/// use mori_rdma::topology::NameFilter;
/// let filter: NameFilter = "mlx5_*,^mlx5_3".parse()?;
/// assert!(filter.passes("mlx5_0", 1).is_ok());
/// assert!(filter.passes("mlx5_3", 1).is_err());
/// assert!(filter.passes("bnxt_re0", 1).is_err());
/// # Ok::<(), mori_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameFilter {
    allowed: Vec<Pattern>,
    denied: Vec<Pattern>,
}

/// A name, or the start of one, and perhaps a port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    name: String,
    starts: bool,
    port: Option<u8>,
}

impl Pattern {
    fn parse(written: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            let message = format!(
                "`{written}` names no RDMA device: {why}; write for example `mlx5_0`, `mlx5_*` or `mlx5_0:1`"
            );
            Err(Error::new(ErrorKind::InvalidArgument, message))
        };
        let text = written.strip_prefix('=').unwrap_or(written);
        let (name, port) = match text.split_once(':') {
            None => (text, None),
            Some((name, port)) => match port.parse() {
                Ok(port) if port > 0 => (name, Some(port)),
                _ => return wrong("a port is a number from 1 to 255"),
            },
        };
        let (name, starts) = name.strip_suffix('*').map_or((name, false), |start| (start, true));
        if name.is_empty() && !starts {
            return wrong("the name is empty");
        }
        if name.contains(['*', '^', '=', '/', ' ']) {
            return wrong("a `*` can only stand at the end, and `^` and `=` only at the front");
        }
        Ok(Self { name: name.to_owned(), starts, port })
    }

    fn fits(&self, device: &str, port: u8) -> bool {
        let name = if self.starts { device.starts_with(&self.name) } else { device == self.name };
        name && self.port.is_none_or(|wanted| wanted == port)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.starts {
            f.write_str("*")?;
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl NameFilter {
    /// From a list of what may be used, each written as one part without `^`, and a list of what may not. An empty list of what may
    /// be used stands for everything.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`], with the part that makes no sense.
    pub fn new<T: AsRef<str>>(allowed: &[T], denied: &[T]) -> Result<Self, Error> {
        let parse = |list: &[T]| -> Result<Vec<Pattern>, Error> {
            list.iter().map(|part| Pattern::parse(part.as_ref().trim())).collect()
        };
        Ok(Self { allowed: parse(allowed)?, denied: parse(denied)? })
    }

    /// Whether the port of the device may be used.
    ///
    /// # Errors
    ///
    /// Why not, in words.
    pub fn passes(&self, device: &str, port: u8) -> Result<(), String> {
        if let Some(pattern) = self.denied.iter().find(|pattern| pattern.fits(device, port)) {
            return Err(format!("the filter leaves it out by `^{pattern}`"));
        }
        if !self.allowed.is_empty() && !self.allowed.iter().any(|pattern| pattern.fits(device, port)) {
            return Err(format!("it is not in the filter's list `{self}`"));
        }
        Ok(())
    }

    /// The names among those that may be used that none of the devices has, so that a misspelt one can be told.
    #[must_use]
    pub fn unknown<'a>(&self, devices: impl IntoIterator<Item = (&'a str, u8)>) -> Vec<String> {
        let devices: Vec<(&str, u8)> = devices.into_iter().collect();
        let missing = |pattern: &&Pattern| !devices.iter().any(|(device, port)| pattern.fits(device, *port));
        self.allowed.iter().filter(missing).map(Pattern::to_string).collect()
    }
}

impl FromStr for NameFilter {
    type Err = Error;

    fn from_str(list: &str) -> Result<Self, Error> {
        let parts: Vec<&str> = list.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        let turned = parts.first().is_some_and(|first| first.starts_with('^'));
        let mut filter = Self::default();
        for part in parts {
            match part.strip_prefix('^') {
                Some(part) => filter.denied.push(Pattern::parse(part)?),
                None if turned => filter.denied.push(Pattern::parse(part)?),
                None => filter.allowed.push(Pattern::parse(part)?),
            }
        }
        Ok(filter)
    }
}

impl fmt::Display for NameFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed = self.allowed.iter().map(Pattern::to_string);
        let denied = self.denied.iter().map(|pattern| format!("^{pattern}"));
        f.write_str(&allowed.chain(denied).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passing(filter: &str) -> Vec<String> {
        let filter: NameFilter = filter.parse().unwrap();
        let devices = [("mlx5_0", 1), ("mlx5_0", 2), ("mlx5_1", 1), ("mlx5_10", 1), ("rxe0", 1)];
        let passing = devices.iter().filter(|(device, port)| filter.passes(device, *port).is_ok());
        passing.map(|(device, port)| format!("{device}:{port}")).collect()
    }

    #[test]
    fn lists_allow_or_deny() {
        let all = ["mlx5_0:1", "mlx5_0:2", "mlx5_1:1", "mlx5_10:1", "rxe0:1"];
        for empty in ["", " , ", "*", "^none"] {
            assert_eq!(passing(empty), all, "`{empty}`");
        }
        assert_eq!(passing("mlx5_1"), ["mlx5_1:1"], "a name is no start of another");
        assert_eq!(passing("=mlx5_1, rxe0"), ["mlx5_1:1", "rxe0:1"]);
        assert_eq!(passing("^mlx5_0,mlx5_1"), ["mlx5_10:1", "rxe0:1"], "the first ^ is for the whole list");
        assert_eq!(passing("^=mlx5_0,^rxe*"), ["mlx5_1:1", "mlx5_10:1"]);
        assert_eq!(passing("mlx5_*,^mlx5_1*"), ["mlx5_0:1", "mlx5_0:2"]);
        assert_eq!(passing("mlx5_0:2,rxe0:1"), ["mlx5_0:2", "rxe0:1"]);
        assert_eq!(passing("^mlx5_0:1"), &all[1..]);
    }

    #[test]
    fn what_makes_no_sense_is_an_error_that_says_how_to_write_it() {
        for wrong in ["mlx5_0:", "mlx5_0:0", "mlx5_0:300", "^", "=", ":1", "a*b", "a^b", "^^a", "a b"] {
            let error = wrong.parse::<NameFilter>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains("mlx5_0:1"), "`{wrong}`: {error}");
        }
    }

    #[test]
    fn a_filter_reads_what_it_writes_and_tells_unknown_names() {
        let filter: NameFilter = "mlx5_0, mlx5_7:1, ^mlx5_0:2".parse().unwrap();
        assert_eq!(filter.to_string(), "mlx5_0,mlx5_7:1,^mlx5_0:2");
        assert_eq!(filter.to_string().parse::<NameFilter>().unwrap(), filter);
        assert_eq!(filter.unknown([("mlx5_0", 1), ("mlx5_1", 1)]), ["mlx5_7:1"]);
        assert_eq!(NameFilter::new(&["mlx5_0", "mlx5_7:1"], &["mlx5_0:2"]).unwrap(), filter);
        let denied: NameFilter = "^a,b".parse().unwrap();
        assert_eq!(denied.to_string().parse::<NameFilter>().unwrap(), denied);
    }
}
