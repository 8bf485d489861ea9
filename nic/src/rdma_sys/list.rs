//! The devices of this machine.

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;

use super::{ibv_device, ibv_free_device_list, ibv_get_device_list, ibv_get_device_name};

/// A device list, freed on drop; contexts that were opened from it live on.
pub struct DeviceList {
    list: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList {
    /// All devices; `None` where the kernel is one without RDMA.
    ///
    /// # Errors
    /// What the library says.
    pub fn get() -> io::Result<Option<Self>> {
        let mut count = 0;
        // SAFETY: the count is a local; the list is freed in `drop`.
        let list = unsafe { ibv_get_device_list(&mut count) };
        let Some(list) = NonNull::new(list) else {
            let source = io::Error::last_os_error();
            return match source.raw_os_error() {
                Some(libc::ENOSYS | libc::ENOENT) => Ok(None),
                _ => Err(source),
            };
        };
        let count = usize::try_from(count).unwrap_or(0);
        Ok(Some(Self { list, count }))
    }

    /// Each with its name. They may be used while the list is there.
    pub fn devices(&self) -> impl Iterator<Item = (*mut ibv_device, String)> {
        (0..self.count).map(|at| {
            // SAFETY: the list has `count` entries until it is freed.
            let device = unsafe { *self.list.as_ptr().add(at) };
            // SAFETY: the list is not freed yet.
            (device, unsafe { device_name(device) })
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the library's, and freed once.
        unsafe { ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// The name of a device.
///
/// # Safety
/// `device` is one of a device list that is not freed, or of an open context.
pub unsafe fn device_name(device: *mut ibv_device) -> String {
    // SAFETY: the caller's promise; the library returns a string inside the device or null.
    let name = unsafe { ibv_get_device_name(device) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: not null, ends with a zero, and lives as long as the device.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
