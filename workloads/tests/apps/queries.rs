use gpuvm_workloads::apps::{AppError, QueryParameters, TableQuery};
use gpuvm_workloads::table::{Trips, generate};

use crate::every_way;

#[test]
fn queries_are_answered_as_by_the_processor() {
    // A last page and a last piece in part.
    for query in TableQuery::all(generate(70_001, 3).unwrap(), &QueryParameters::default()).unwrap() {
        every_way(&query);
    }
}

#[test]
fn a_table_without_rows_is_refused() {
    let refused = TableQuery::all(Trips::default(), &QueryParameters::default());
    assert!(matches!(refused, Err(AppError::Input { .. })));
}
