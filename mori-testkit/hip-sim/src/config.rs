//! What the simulated machine looks like.

use std::collections::BTreeSet;
use std::time::Duration;

/// The simulated machine.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// How many devices the machine has, visible or not.
    pub(crate) devices: usize,
    /// The physical numbers of the devices that this process sees, in the order of its own numbers. `None`: all.
    pub(crate) visible: Option<Vec<usize>>,
    /// The pairs of physical devices that reach each other. `None`: all.
    pub(crate) peers: Option<BTreeSet<(usize, usize)>>,
    /// How long a copy takes before its bytes move.
    pub(crate) latency: Duration,
    /// How many bytes a copy moves in a microsecond; zero for no limit.
    pub(crate) bytes_per_us: u64,
    /// How much memory each device has.
    pub(crate) memory: u64,
}

impl Config {
    /// What the environment says.
    pub(crate) fn from_environment() -> Self {
        let mut config = Self {
            devices: 2,
            visible: None,
            peers: None,
            latency: Duration::ZERO,
            bytes_per_us: 0,
            memory: 1 << 32,
        };
        for setting in std::env::var("MORI_HIP_SIM").unwrap_or_default().split_whitespace() {
            if let Some((key, value)) = setting.split_once('=') {
                // A setting that is none is ignored here, as the real runtime ignores its variables' mistakes.
                let _ = config.set(key, value);
            }
        }
        if let Ok(visible) = std::env::var("HIP_VISIBLE_DEVICES") {
            let _ = config.set("visible", &visible);
        }
        config
    }

    /// Changes one setting.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = || value.parse::<u64>().map_err(|error| format!("{key}={value}: {error}"));
        let index =
            |text: &str| text.trim().parse::<usize>().map_err(|error| format!("{key}={value}: {error}"));
        match key {
            "devices" => self.devices = index(value)?,
            "latency_us" => self.latency = Duration::from_micros(number()?),
            "bytes_per_us" => self.bytes_per_us = number()?,
            "memory" => self.memory = number()?,
            "visible" if value == "all" => self.visible = None,
            "visible" => {
                let list = value.split(',').filter(|part| !part.trim().is_empty());
                self.visible = Some(list.map(index).collect::<Result<_, _>>()?);
            }
            "peers" if value == "all" => self.peers = None,
            "peers" if value == "none" => self.peers = Some(BTreeSet::new()),
            "peers" => {
                let pair = |text: &str| {
                    let (a, b) = text.split_once('-').ok_or_else(|| format!("{text} is no pair like 0-1"))?;
                    Ok::<_, String>((index(a)?, index(b)?))
                };
                let pairs = value.split(',').map(pair).collect::<Result<Vec<_>, _>>()?;
                self.peers = Some(pairs.into_iter().flat_map(|(a, b)| [(a, b), (b, a)]).collect());
            }
            _ => return Err(format!("there is no setting {key}")),
        }
        Ok(())
    }

    /// How many devices the process sees.
    pub(crate) fn count(&self) -> usize {
        match &self.visible {
            None => self.devices,
            // As with the real variable, what comes after a number that is none is not seen.
            Some(list) => list.iter().take_while(|&&device| device < self.devices).count(),
        }
    }

    /// The physical number of a device that the process sees.
    pub(crate) fn physical(&self, device: i32) -> Option<usize> {
        let device = usize::try_from(device).ok().filter(|&device| device < self.count())?;
        match &self.visible {
            None => Some(device),
            Some(list) => list.get(device).copied(),
        }
    }

    /// Whether one physical device reaches the memory of another.
    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        from == to || self.peers.as_ref().is_none_or(|pairs| pairs.contains(&(from, to)))
    }

    /// The bus id of a physical device. The domain is one that no real machine has.
    pub(crate) fn bus_id(physical: usize) -> String {
        format!("51a0:{:02x}:00.0", physical + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_describe_the_machine() {
        let mut config = Config::from_environment();
        for (key, value) in
            [("devices", "4"), ("visible", "2,0,9,1"), ("peers", "0-2,1-3"), ("latency_us", "7")]
        {
            config.set(key, value).unwrap();
        }
        assert_eq!(config.count(), 2);
        assert_eq!((config.physical(0), config.physical(1), config.physical(2)), (Some(2), Some(0), None));
        assert!(
            config.reaches(2, 0) && config.reaches(0, 2) && config.reaches(1, 1) && !config.reaches(0, 1)
        );
        assert_eq!(config.latency, Duration::from_micros(7));
        assert!(config.set("devices", "many").is_err());
        assert!(config.set("colour", "red").is_err());
    }
}
