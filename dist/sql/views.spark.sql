-- The tables, for Spark: give it the folder that `ncclflow export -f parquet -o FOLDER` has written, as a full path or URL.
--
--   spark-sql --conf spark.sql.sources.partitionColumnTypeInference.enabled=false \
--             -d tables=/data/FOLDER -i /usr/share/doc/ncclflow/dist/sql/views.spark.sql
--
-- Names of jobs and hosts are text, also where they look like numbers (the --conf). Files of different versions of ncclflow are put
-- together by the names of their columns (mergeSchema).

SET spark.sql.sources.partitionColumnTypeInference.enabled = false;

CREATE OR REPLACE TEMPORARY VIEW op USING parquet
    OPTIONS (path '${tables}/op', mergeSchema 'true');

CREATE OR REPLACE TEMPORARY VIEW message USING parquet
    OPTIONS (path '${tables}/message', mergeSchema 'true');

CREATE OR REPLACE TEMPORARY VIEW call USING parquet
    OPTIONS (path '${tables}/call', mergeSchema 'true');

CREATE OR REPLACE TEMPORARY VIEW comm USING parquet
    OPTIONS (path '${tables}/comm', mergeSchema 'true');

CREATE OR REPLACE TEMPORARY VIEW host USING parquet
    OPTIONS (path '${tables}/host', mergeSchema 'true');

CREATE OR REPLACE TEMPORARY VIEW link_1s USING parquet
    OPTIONS (path '${tables}/link_1s', mergeSchema 'true');
