//! Which requests may run together: those whose keys are equal, byte for byte.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

/// What two requests for one model must have in common to share a batch: the inputs given, every dimension that may vary except the
/// batch axis, the contents of inputs without a batch axis, and the parameters that reach the model.
///
/// Empty for a model of fixed shapes. Cheap to clone and to compare; equality is that of the bytes, never only of a hash.
#[derive(Clone, Debug)]
pub struct BatchKey(Repr);

#[derive(Clone, Debug)]
enum Repr {
    Small { len: u8, bytes: [u8; INLINE] },
    Large(Arc<Large>),
}

/// Such a key may hold whole tensors, and a queue hashes it often.
#[derive(Debug)]
struct Large {
    hash: u64,
    bytes: Box<[u8]>,
}

const INLINE: usize = 22;

impl BatchKey {
    /// A key of these bytes.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        // Seeded, since callers choose the bytes.
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        if bytes.len() <= INLINE {
            let mut small = [0; INLINE];
            small[..bytes.len()].copy_from_slice(bytes);
            return Self(Repr::Small {
                len: bytes.len() as u8,
                bytes: small,
            });
        }
        Self(Repr::Large(Arc::new(Large {
            hash: SEED.hash_one(bytes),
            bytes: bytes.into(),
        })))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Small { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Large(large) => &large.bytes,
        }
    }
}

impl Default for BatchKey {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl PartialEq for BatchKey {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Repr::Small { len: a, bytes: x }, Repr::Small { len: b, bytes: y }) => {
                a == b && x == y
            }
            (Repr::Large(a), Repr::Large(b)) => {
                Arc::ptr_eq(a, b) || (a.hash == b.hash && a.bytes == b.bytes)
            }
            _ => false,
        }
    }
}

impl Eq for BatchKey {}

impl Hash for BatchKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Repr::Small { .. } => self.as_bytes().hash(state),
            Repr::Large(large) => large.hash.hash(state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_equal_exactly_when_their_bytes_are() {
        let long = [7_u8; 1000];
        let mut other = long;
        other[999] = 8;
        assert_eq!(BatchKey::new(&long), BatchKey::new(&long));
        assert_ne!(BatchKey::new(&long), BatchKey::new(&other));
        assert_ne!(BatchKey::new(&[0]), BatchKey::new(&[0, 0]));
        assert_ne!(BatchKey::new(&[0; INLINE]), BatchKey::new(&[0; INLINE + 1]));
        assert_eq!(BatchKey::default().as_bytes(), b"");
    }

    #[test]
    fn equal_keys_hash_alike() {
        let state = RandomState::new();
        for len in [0, 1, INLINE, INLINE + 1, 5000] {
            let bytes = vec![3; len];
            let hashes =
                [BatchKey::new(&bytes), BatchKey::new(&bytes)].map(|it| state.hash_one(it));
            assert_eq!(hashes[0], hashes[1]);
        }
    }
}
