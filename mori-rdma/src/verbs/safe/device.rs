//! The loaded library and the devices that it lists.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::error::{Failure, VerbsError};
use super::super::loader;
use super::super::sys::{Api, ibv_device};
use super::{Context, NodeType, Object, Transport};

/// The loaded verbs library; a handle, clones are handles to the same one.
#[derive(Clone)]
pub struct Verbs(Arc<Loaded>);

pub(super) struct Loaded {
    pub(super) api: Api,
    path: PathBuf,
}

impl Verbs {
    /// Loads the library: `library`, if it is given; else what the environment's `MORI_VERBS_LIBRARY` names, else
    /// `libibverbs.so.1`. It stays loaded until the process ends.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoLibrary`] with what was tried, [`VerbsError::MissingSymbol`] for a library that is too old or none.
    pub fn load(library: Option<&Path>) -> Result<Self, VerbsError> {
        let (api, path) = loader::load(library)?;
        Ok(Self(Arc::new(Loaded { api, path })))
    }

    /// The library, as it was found.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Functions of later releases, with whether this library has them.
    #[must_use]
    pub fn optional_functions(&self) -> Vec<(&'static str, bool)> {
        self.0.api.optional()
    }

    /// The devices that the library lists now. A kernel without RDMA is one without devices.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn devices(&self) -> Result<Vec<Device>, VerbsError> {
        let mut count = 0;
        // SAFETY: the call writes one number through the pointer and returns an array, or null.
        let array = unsafe { (self.0.api.ibv_get_device_list)(&raw mut count) };
        let Some(array) = Object::new(array) else {
            let failure = Failure::last("ibv_get_device_list");
            return if failure.errno == libc::ENOSYS { Ok(Vec::new()) } else { Err(failure.into()) };
        };
        let list = Arc::new(List { loaded: Arc::clone(&self.0), array });
        let mut devices = Vec::new();
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the array has that many entries.
            let entry = unsafe { list.array.pointer().add(at) };
            // SAFETY: as above.
            let Some(device) = Object::new(unsafe { entry.read() }) else { break };
            devices.push(Device {
                name: list.name(&device)?,
                device: Arc::new(device),
                list: Arc::clone(&list),
            });
        }
        Ok(devices)
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs").field("path", &self.0.path).finish_non_exhaustive()
    }
}

/// The array that the library gave; its devices stay while it does.
struct List {
    loaded: Arc<Loaded>,
    array: Object<*mut ibv_device>,
}

impl List {
    fn name(&self, device: &Object<ibv_device>) -> Result<String, VerbsError> {
        // SAFETY: the device is of this list, which lives.
        let name = unsafe { (self.loaded.api.ibv_get_device_name)(device.pointer()) };
        if name.is_null() {
            return Err(Failure::last("ibv_get_device_name").into());
        }
        // SAFETY: the name ends in a zero byte and stays with the device.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the array is the library's, is given back once, and no device of it is used any more; open ones the library
        // counts for itself.
        unsafe { (self.loaded.api.ibv_free_device_list)(self.array.pointer()) };
    }
}

/// An RDMA device; a handle, clones are handles to the same one. It stays usable when the device goes, and then fails to open.
#[derive(Clone)]
pub struct Device {
    name: String,
    device: Arc<Object<ibv_device>>,
    list: Arc<List>,
}

impl Device {
    /// The kernel's name for it, as in `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its GUID, the same for every process of the machine; 0 if the kernel does not say.
    #[must_use]
    pub fn guid(&self) -> u64 {
        // SAFETY: the device is of a list that lives.
        let guid = unsafe { (self.api().ibv_get_device_guid)(self.pointer()) };
        u64::from_be(guid)
    }

    /// What it is.
    #[must_use]
    pub fn node_type(&self) -> NodeType {
        // SAFETY: the device is of a list that lives, and the field does not change.
        let number = unsafe { (*self.pointer()).node_type };
        NodeType::from_number(number.cast_unsigned())
    }

    /// What it speaks.
    #[must_use]
    pub fn transport(&self) -> Transport {
        // SAFETY: as above.
        let number = unsafe { (*self.pointer()).transport_type };
        Transport::from_number(number.cast_unsigned())
    }

    /// Its folder in sysfs, as in `/sys/class/infiniband/mlx5_0`, if the library says.
    #[must_use]
    pub fn sysfs_path(&self) -> Option<PathBuf> {
        // SAFETY: as above; a copy of the array, whose bytes the library wrote when it made the list.
        let path: [c_char; 256] = unsafe { (*self.pointer()).ibdev_path };
        let bytes: Vec<u8> =
            path.iter().take_while(|&&byte| byte != 0).map(|&byte| byte.cast_unsigned()).collect();
        let path = String::from_utf8(bytes).ok()?;
        (!path.is_empty()).then(|| PathBuf::from(path))
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// What the library says, for example that the device is gone or this user may not.
    pub fn open(&self) -> Result<Context, VerbsError> {
        Context::open(self)
    }

    pub(super) fn api(&self) -> &Api {
        &self.list.loaded.api
    }

    pub(super) fn pointer(&self) -> *mut ibv_device {
        self.device.pointer()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}
