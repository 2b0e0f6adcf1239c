//! Where one request's rows lie in a tensor of many: along the batch axis, which need not be the first.

use std::ops::Range;

use crate::shape::product;

/// Equal pieces at equal distances; one piece where the batch axis is the first. Counted in elements or bytes, as the unit was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slices {
    pieces: usize,
    stride: usize,
    start: usize,
    len: usize,
}

impl Slices {
    /// The `rows` rows from `first` of a tensor of this shape, or all of it if it has no batch axis. `unit` is the size of an element.
    #[inline]
    pub(crate) fn of(
        shape: &[i64],
        axis: Option<usize>,
        first: usize,
        rows: usize,
        unit: usize,
    ) -> Self {
        let Some(axis) = axis else {
            let len = product(shape) * unit;
            return Self {
                pieces: 1,
                stride: len,
                start: 0,
                len,
            };
        };
        let row = product(&shape[axis + 1..]) * unit;
        Self {
            pieces: product(&shape[..axis]),
            stride: shape[axis] as usize * row,
            start: first * row,
            len: rows * row,
        }
    }

    /// Length of all pieces together.
    #[inline]
    pub(crate) fn total(self) -> usize {
        self.pieces * self.len
    }

    /// The pieces in order; none where they would be empty.
    #[inline]
    pub(crate) fn ranges(self) -> impl Iterator<Item = Range<usize>> {
        let pieces = if self.len == 0 { 0 } else { self.pieces };
        (0..pieces).map(move |piece| {
            let start = piece * self.stride + self.start;
            start..start + self.len
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(shape: &[i64], axis: Option<usize>, first: usize, rows: usize) -> Vec<Range<usize>> {
        Slices::of(shape, axis, first, rows, 1).ranges().collect()
    }

    #[test]
    fn rows_of_an_inner_axis_are_one_piece_for_each_outer_index() {
        assert_eq!(ranges(&[2, 5, 3], Some(1), 1, 2), vec![3..9, 18..24]);
        assert_eq!(ranges(&[5, 3], Some(0), 4, 1), vec![12..15]);
        assert_eq!(ranges(&[2, 3], Some(1), 2, 1), vec![2..3, 5..6]);
    }

    #[test]
    fn a_tensor_without_batch_axis_is_given_whole() {
        assert_eq!(ranges(&[], None, 7, 1), vec![0..1]);
        assert_eq!(ranges(&[2, 2], None, 7, 1), vec![0..4]);
    }

    #[test]
    fn zero_dimensions_give_no_pieces_and_divide_nothing() {
        assert!(ranges(&[3, 0], Some(0), 1, 1).is_empty());
        assert!(ranges(&[0, 3, 2], Some(1), 1, 1).is_empty());
        assert!(ranges(&[0], None, 0, 1).is_empty());
    }
}
