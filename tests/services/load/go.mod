module llamabi/tests/services/load

go 1.24
