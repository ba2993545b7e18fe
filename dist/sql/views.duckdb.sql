-- The tables, for DuckDB: run it in the folder that `ncclflow export -f parquet -o FOLDER` has written.
--
--   cd FOLDER && duckdb -init /usr/share/doc/ncclflow/dist/sql/views.duckdb.sql
--
-- Names of jobs and hosts are text, also where they look like numbers. Files of different versions of ncclflow are put together by
-- the names of their columns.

CREATE OR REPLACE VIEW op AS SELECT * FROM read_parquet('op/*/*/*.parquet',
    hive_partitioning = true, hive_types = {'job': VARCHAR, 'host': VARCHAR}, union_by_name = true);

CREATE OR REPLACE VIEW message AS SELECT * FROM read_parquet('message/*/*/*.parquet',
    hive_partitioning = true, hive_types = {'job': VARCHAR, 'host': VARCHAR}, union_by_name = true);

CREATE OR REPLACE VIEW call AS SELECT * FROM read_parquet('call/*/*/*.parquet',
    hive_partitioning = true, hive_types = {'job': VARCHAR, 'host': VARCHAR}, union_by_name = true);

CREATE OR REPLACE VIEW comm AS SELECT * FROM read_parquet('comm/*/*/*.parquet',
    hive_partitioning = true, hive_types = {'job': VARCHAR, 'host': VARCHAR}, union_by_name = true);

CREATE OR REPLACE VIEW host AS SELECT * FROM read_parquet('host/*/*/*.parquet',
    hive_partitioning = true, hive_types = {'job': VARCHAR, 'host': VARCHAR}, union_by_name = true);

CREATE OR REPLACE VIEW link_1s AS SELECT * FROM read_parquet('link_1s/*/*/*.parquet',
    hive_partitioning = true, hive_types = {'job': VARCHAR, 'host': VARCHAR}, union_by_name = true);
