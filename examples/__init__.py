"""Programs to copy, one file each, and in `demo/` the applications of `lakequeue demo`.

| file | shows |
|---|---|
| `worker.py` | handle messages, try again later, reject, stop on a signal |
| `publisher.py` | publish fast, and know what became of each message |
| `request_reply.py` | ask a server over queues, and wait for its answer |
| `plain_kafka.py` | use a queue with nothing but a Kafka client |
| `spark_job.py` | read a queue in a Spark job |
| `celery_shop.py` | run Celery tasks on lakequeue |
"""
